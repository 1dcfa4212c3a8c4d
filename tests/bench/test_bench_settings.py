"""A benchmark's settings: lists as text, the quick scale, one line for a mistake."""

import pytest

from pfl_ops.bench.settings import QUICK, BenchSettings, settings_of
from pfl_ops.errors import PflOpsError


def test_lists_are_text_with_commas():
    s = settings_of(
        {"model": "linear, mlp", "batch": "10,50", "chunk": "none", "precision": "bfloat16", "repeats": "3"}
    )
    assert (s.model, s.batch, s.chunk, s.precision, s.repeats) == (("linear", "mlp"), (10, 50), (), ("bfloat16",), 3)


def test_quick_is_a_start_that_flags_change():
    assert settings_of({"clients": "5"}, quick=True) == BenchSettings.model_validate({**QUICK, "clients": 5})
    assert settings_of({}).clients == 20


def test_each_network_has_its_data():
    assert [BenchSettings().data_of(model) for model in ("mlp", "cnn_cifar")] == ["mnist", "cifar10"]
    assert BenchSettings(dataset="digits").data_of("cnn_cifar") == "digits"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"model": "mlp,lineer"}, r"no model named 'lineer'\. Did you mean 'linear'\?"),
        ({"dataset": "mnst"}, r"no dataset named 'mnst'\. Did you mean 'mnist'\?"),
        ({"modle": "mlp"}, r"no setting named 'modle'\. Did you mean 'model'\?"),
        ({"batch": "10,0"}, r"^--batch \(B\) must be a list, each an integer in \[1, 1,000,000\], got '0'$"),
        ({"chunk": "1"}, r"^--chunk must be a list, each an integer in \[2, 1,000,000\], got '1'$"),
        ({"measure": "trains"}, r"--measure must be a list, each one of train, evaluate, round, got 'trains'"),
        ({"repeats": "0"}, r"^--repeats \(n\) must be an integer in \[1, 1,000,000\], got '0'$"),
    ],
)
def test_a_mistake_is_one_line(given, line):
    with pytest.raises(PflOpsError, match=line):
        settings_of(given, prefix="--")
