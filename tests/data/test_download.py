"""Downloads, from a stubbed opener: nothing leaves this machine."""

import gzip
import hashlib
import io
import struct
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_ops.data import download
from pfl_ops.data.datasets import DataSection, load
from pfl_ops.data.npz import DataError


class Response(io.BytesIO):
    """An answer of `urllib.request.urlopen`, as far as torchvision looks at it."""

    url = None

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.length = len(content)


class Web:
    """Files by the last part of their address; everything else is not found."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []

    def __call__(self, request: urllib.request.Request, *_: Any, **__: Any) -> Response:
        self.asked.append(request.full_url)
        name = request.full_url.rsplit("/", 1)[1]
        if name not in self.files:
            raise urllib.error.URLError("[Errno -2] Name or service not known")
        return Response(self.files[name])


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Web:
    stub = Web()
    monkeypatch.setattr(urllib.request, "urlopen", stub)
    return stub


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def idx(array: np.ndarray) -> bytes:
    """MNIST's own format: 0 0 type rank, lengths, bytes; gzipped."""
    head = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return gzip.compress(head + array.astype(np.uint8).tobytes())


def published(name: str) -> Any:
    """A class of torchvision, which takes a second to import: not while tests are collected."""
    from torchvision import datasets

    return getattr(datasets, name)


def publish_mnist(web: Web, monkeypatch: pytest.MonkeyPatch, source: type) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {}
    resources = []
    for part, stem, n in (("train", "train", 50), ("test", "t10k", 20)):
        made[f"x_{part}"] = rng.integers(0, 256, (n, 28, 28)).astype(np.uint8)
        made[f"y_{part}"] = np.arange(n) % 10
        for array, kind in ((made[f"x_{part}"], "images-idx3"), (made[f"y_{part}"], "labels-idx1")):
            name, content = f"{stem}-{kind}-ubyte.gz", idx(array)
            web.files[name] = content
            resources.append((name, md5(content)))
    monkeypatch.setattr(source, "resources", resources)
    return made


@pytest.mark.parametrize(
    ("name", "source"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST"), ("kmnist", "KMNIST")]
)
def test_mnist_and_its_kin(
    name: str, source: str, web: Web, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = publish_mnist(web, monkeypatch, published(source))
    data = load(name)
    assert np.array_equal(data.train.x[..., 0], made["x_train"]) and np.array_equal(data.test.y, made["y_test"])
    assert capsys.readouterr().out == ""
    web.files.clear()
    assert load(name).digest == data.digest  # from the cache, without asking again


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_comes_as_binary_records(name: str, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    file, _, folder, train, test, label_bytes = download.CIFAR[name]
    rng = np.random.default_rng(0)
    images, labels, packed = [], [], io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for member in (*train, test):
            x = rng.integers(0, 256, (20, 32, 32, 3)).astype(np.uint8)
            y = rng.integers(0, 10, 20).astype(np.uint8)
            coarse = np.full((20, label_bytes - 1), 99, np.uint8)
            record = np.concatenate([coarse, y[:, None], x.transpose(0, 3, 1, 2).reshape(20, -1)], axis=1)
            info = tarfile.TarInfo(f"{folder}/{member}")
            info.size = record.size
            archive.addfile(info, io.BytesIO(record.tobytes()))
            images.append(x)
            labels.append(y)
    content = packed.getvalue()
    web.files[file] = content
    monkeypatch.setitem(download.CIFAR, name, (file, md5(content), folder, train, test, label_bytes))
    data = load(DataSection(name=name, train_size=None))
    assert np.array_equal(data.train.x, np.concatenate(images[:-1])) and np.array_equal(data.test.x, images[-1])
    assert np.array_equal(data.train.y, np.concatenate(labels[:-1])) and np.array_equal(data.test.y, labels[-1])
    assert web.asked[-1].endswith(f"/{file}")


def test_no_network(web: Web, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(cache.parent))
    for name in ("mnist", "cifar10"):
        with pytest.raises(DataError) as error:
            load(name)
        assert str(error.value) == (
            f"{name} is not in ~/cache and could not be downloaded (no network).\n"
            f"Put {name}.npz (x_train, y_train, x_test, y_test) there, name its folder with --data-dir, or try "
            "--dataset digits, which needs no download."
        )
    assert not list(cache.glob("*.npy"))


def test_a_wrong_checksum(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_mnist(web, monkeypatch, published("MNIST"))
    web.files["train-images-idx3-ubyte.gz"] = idx(np.zeros((50, 28, 28), np.uint8))
    with pytest.raises(DataError, match=r"could not be downloaded \(its checksum is wrong\)"):
        load("mnist")
    web.files["cifar-10-binary.tar.gz"] = b"something else"
    with pytest.raises(DataError, match=r"cifar10 .* could not be downloaded \(its checksum is wrong\)"):
        load("cifar10")


def test_a_server_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: urllib.request.Request, *_: Any, **__: Any) -> Response:
        raise urllib.error.HTTPError(request.full_url, 503, "Service Unavailable", None, None)  # type: ignore[arg-type]

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(DataError, match=r"could not be downloaded \(the server answered 503\)"):
        load("cifar10")


def test_published_images_of_another_shape(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist = published("MNIST")
    publish_mnist(web, monkeypatch, mnist)
    small = idx(np.zeros((50, 20, 20), np.uint8))
    web.files["train-images-idx3-ubyte.gz"] = small
    names = dict(mnist.resources) | {"train-images-idx3-ubyte.gz": md5(small)}
    monkeypatch.setattr(mnist, "resources", list(names.items()))
    with pytest.raises(DataError, match=r"could not be downloaded \(mnist: x_train has samples uint8 \[20, 20, 1\], "):
        load("mnist")
