"""CharLSTM: its size, its equations written out, codes in and codes refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.network.net import Net
from pfl_ops.federation.settings import Execution
from pfl_ops.models import MODELS, build, check
from pfl_ops.models.base import example_of


def network(shape=(80,), n_classes=80, seed=0, **options):
    return build(MODELS.get("char_lstm")(**options), shape, n_classes, seed)


def layer(inputs, units):
    """Four gates, each with weights of input and state, and PyTorch's two biases."""
    return 4 * (inputs * units + units * units + 2 * units)


def test_number_of_parameters():
    expected = 80 * 8 + layer(8, 256) + layer(256, 256) + 256 * 80 + 80
    assert expected == 819_920
    assert sum(p.numel() for p in network().parameters()) == expected


def by_hand(p, codes):
    """i, f, o = σ(·), g = tanh(·); c ← f c + i g; h ← o tanh(c); two layers; scores of the last h."""
    x = p["body.embedding.weight"][codes]
    for i in (0, 1):
        w, u = p[f"body.lstm.weight_ih_l{i}"], p[f"body.lstm.weight_hh_l{i}"]
        b = p[f"body.lstm.bias_ih_l{i}"] + p[f"body.lstm.bias_hh_l{i}"]
        h = c = x.new_zeros(len(x), u.shape[1])
        states = []
        for t in range(x.shape[1]):
            into, forget, g, out = (x[:, t] @ w.T + h @ u.T + b).chunk(4, dim=1)
            c = forget.sigmoid() * c + into.sigmoid() * g.tanh()
            h = out.sigmoid() * c.tanh()
            states.append(h)
        x = torch.stack(states, dim=1)
    return x[:, -1] @ p["head.weight"].T + p["head.bias"]


def test_scores_are_the_equations_written_out():
    model = network((7,), 5, characters=6, embedding=3, hidden=4).double()
    codes = torch.tensor([[0, 1, 2, 3, 4, 5, 0], [5, 5, 1, 0, 2, 2, 4], [3, 3, 3, 3, 3, 3, 3]])
    expected = by_hand(dict(model.named_parameters()), codes)
    assert torch.allclose(model(codes.double()), expected, rtol=1e-12, atol=1e-14)


def test_as_a_function_of_a_row_it_uses_that_rows_parameters():
    """cuDNN's and MKL's LSTMs keep references to their weights; another client's row must still be what acts."""
    one, two = (network((7,), 5, seed, characters=6, hidden=4).double() for seed in (0, 1))
    codes = torch.tensor([[0.0, 1, 2, 3, 4, 5, 0]]).double()
    net = Net(one)
    row = net.layout.flatten(dict(two.named_parameters())).requires_grad_()
    scores = net.scores(row[None], codes[None])[0]
    assert torch.allclose(scores, two(codes), rtol=1e-12)
    (gradient,) = torch.autograd.grad(scores.logsumexp(1).sum(), row)
    expected = torch.autograd.grad(two(codes).logsumexp(1).sum(), list(two.parameters()))
    named = dict(zip(dict(two.named_parameters()), expected, strict=True))
    assert torch.allclose(gradient, net.layout.flatten(named), rtol=1e-10)


def test_it_trains_one_client_at_a_time():
    assert not check(network((7,), 5), example_of((7,)))


def test_numbers_that_are_no_codes():
    model = network((3,), 5, characters=6)
    assert torch.equal(model(torch.tensor([[-1.0, 0.4, 4.6]])), model(torch.tensor([[0.0, 0.0, 5.0]])))
    with pytest.raises(PflOpsError, match="'char_lstm' knows the codes 0 to 5, got 6"):
        model(torch.tensor([[0.0, 1.0, 6.0]]))


def test_codes_of_a_data_file_that_would_be_scaled_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scaled codes, -1.6 to 1.6, would be rounded to the codes 0, 1 and 2."""
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "cache"))
    x, y = np.arange(240, dtype=np.float32).reshape(60, 4) % 7, np.arange(60) % 3
    np.savez(tmp_path / "lines.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    experiment = Experiment.of("fedavg", dataset=str(tmp_path / "lines.npz"), model="char_lstm", clients=3)
    experiment = experiment.override({"model.hidden": 4, "partition.kind": "iid"})
    execution = Execution(device="cpu", way="loop", workers=1, threads=1)
    with pytest.raises(PflOpsError, match=r"character codes of lines as stored: data.scaling=\[0, 1\]; got st"):
        experiment.build(execution=execution)
    raw = experiment.override({"data.scaling": [0, 1]}).build(execution=execution)
    assert sorted(raw.feed.inputs(torch.arange(60)).unique().tolist()) == [0, 1, 2, 3, 4, 5, 6]
