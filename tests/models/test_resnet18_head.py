"""The frozen ResNet-18: what it sees, which weights it takes, and how their absence is told. No network here."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pfl_ops.errors import PflOpsError
from pfl_ops.models import MODELS, build, resnet18_head
from pfl_ops.models.backbone import backbone, weights_file

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 28, 28, 1)).astype(np.uint8)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """PyTorch's own folder of downloads, empty; what is published is said to lie in a folder that is not there."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    monkeypatch.setattr(resnet18_head, "_url", lambda: (tmp_path / "published.pth").as_uri())
    return tmp_path / "torch" / "hub" / "checkpoints"


@pytest.fixture(scope="module")
def trained() -> torch.nn.Module:
    """A ResNet-18 whose every number differs from a fresh one's, running statistics too."""
    from torchvision.models import resnet18

    generator = torch.Generator().manual_seed(5)
    network = resnet18(weights=None).eval()
    with torch.no_grad():
        for key, value in network.state_dict().items():
            if value.is_floating_point():
                noise = torch.rand(value.shape, generator=generator)
                value.mul_(1 + 0.1 * noise).add_(0.1 * noise if "running" in key or "bias" in key else 0)
    return network


def section(**options):
    return MODELS.get("resnet18_head")(**options)


def features(size=32, images=IMAGES, **options):
    return backbone(section(size=size, **options)).open("cpu")(images)


def test_features_are_torchvisions(trained, tmp_path):
    """Resized, normalised and pooled by torchvision's own functions, three equal channels for grey."""
    from torchvision.transforms import functional as T

    torch.save(trained.state_dict(), tmp_path / "trained.pth")
    wide = np.random.default_rng(1).integers(0, 256, (3, 50, 44, 3)).astype(np.uint8)  # made smaller, and square
    kept = []
    trained.fc.register_forward_hook(lambda layer, inputs, output: kept.append(inputs[0]))
    for images, size in ((IMAGES, 48), (wide, 32)):
        x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
        x = T.resize(x, [size, size], antialias=True).repeat(1, 4 - x.shape[1] if x.shape[1] == 1 else 1, 1, 1)
        x = T.normalize(x, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        with torch.no_grad():
            trained(x)
        ours = features(size, images, weights=str(tmp_path / "trained.pth"))
        assert ours.shape == (3, 512) and ours.dtype == np.float32
        np.testing.assert_allclose(ours, kept.pop().numpy(), rtol=1e-4, atol=1e-5)
    trained.fc._forward_hooks.clear()


def test_both_kinds_of_files_give_the_same(trained, tmp_path):
    torch.save(trained.state_dict(), tmp_path / "a.pth")
    bare = {key: value for key, value in trained.state_dict().items() if not key.startswith("fc.")}
    save_file(bare, tmp_path / "b.safetensors")
    one, other = (features(weights=str(tmp_path / name)) for name in ("a.pth", "b.safetensors"))
    assert np.array_equal(one, other)
    assert not np.allclose(one, features(pretrained=False), atol=0.1)


def test_a_random_backbone_is_the_same_in_every_process():
    torch.manual_seed(3)
    first, after = features(pretrained=False), torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(2), after)  # the process's generator did not move
    assert np.array_equal(first, features(pretrained=False))
    assert first.std() > 0.1 and np.isfinite(first).all()


def test_downloaded_once_and_against_its_checksum(hub, tmp_path, monkeypatch, trained, capfd):
    published = tmp_path / "published.pth"
    torch.save(trained.state_dict(), published)
    sha = hashlib.sha256(published.read_bytes()).hexdigest()
    monkeypatch.setattr(resnet18_head, "PUBLISHED", f"resnet18-{sha[:8]}.pth")
    assert weights_file(section()) == hub / f"resnet18-{sha[:8]}.pth"
    assert not capfd.readouterr().out  # stdout is the command's
    published.unlink()
    assert weights_file(section()).read_bytes()  # there already: nobody asks again
    assert np.array_equal(features(), features(weights=str(weights_file(section()))))


def test_a_download_with_another_checksum_is_not_kept(hub, tmp_path):
    (tmp_path / "published.pth").write_bytes(b"something else")
    with pytest.raises(PflOpsError, match=r"could not be downloaded \(its checksum is wrong\)"):
        weights_file(section())
    assert not list(hub.glob("*"))


def test_neither_weights_nor_network(hub):
    with pytest.raises(PflOpsError) as error:
        backbone(section())
    assert str(error.value) == (
        f"model 'resnet18_head' needs torchvision's resnet18-f37072fd.pth, which is not in {hub} and could not be "
        "downloaded (no network); name a file with --set model.weights=FILE, or take a random backbone with "
        "--set model.pretrained=false"
    )


def test_the_published_files_name_is_torchvisions():
    from torchvision.models import ResNet18_Weights

    assert ResNet18_Weights.IMAGENET1K_V1.url.endswith("/" + resnet18_head.PUBLISHED)


def test_weights_that_do_not_fit(trained, tmp_path):
    file = tmp_path / "w.pth"

    def refusal(state):
        torch.save(state, file)
        with pytest.raises(PflOpsError) as error:
            features(weights=str(file))
        return str(error.value)

    state = trained.state_dict()
    assert "lacks 'bn1.weight'" in refusal({k: v for k, v in state.items() if k != "bn1.weight"})
    assert "has, beside those of the model, 'layer5.0'" in refusal(state | {"layer5.0": torch.ones(1)})
    assert "does not fit torchvision's ResNet-18: size mismatch for conv1.weight" in refusal(
        state | {"conv1.weight": torch.ones(64, 1, 7, 7)}
    )
    assert "holds no state_dict" in refusal({"epoch": 3, "state_dict": state})
    assert "is not a readable state_dict" in refusal(trained)  # a pickled module is never unpickled
    with pytest.raises(PflOpsError, match=r"weights file .*none.pth does not exist"):
        features(weights=str(tmp_path / "none.pth"))
    with pytest.raises(PflOpsError, match=r"random backbone, so model.weights must be none"):
        backbone(section(pretrained=False, weights=str(file)))


@pytest.mark.parametrize("shape", [(64,), (28, 28, 2)])
def test_samples_that_are_no_images(shape):
    with pytest.raises(PflOpsError, match="needs images of 1 or 3 channels, got samples of shape"):
        backbone(section(pretrained=False), shape)


def test_the_network_itself_is_linear_on_features():
    network = build(section(weights="not read here.pth"), (512,), 10, seed=0)
    x = torch.rand(2, 512)
    assert torch.allclose(network(x), x @ network.head.weight.T + network.head.bias, atol=1e-6)
    assert not list(network.body.parameters()) and section().size == 112
    with pytest.raises(PflOpsError, match=r"sees features of shape \(512,\), got samples of \(28, 28, 1\)"):
        build(section(), (28, 28, 1), 10, seed=0)
