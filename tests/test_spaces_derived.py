"""The search space of a method without a file: what follows from the bounds of its fields."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import pytest

from pfl_ops import spaces
from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.algorithms.base import Algorithm, Field, register
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.section import Section
from pfl_ops.spaces.derived import TRAINING, from_fields


class Part(Section):
    inner: float = Field(0.5, ge=0, le=1)


class Bounded(Algorithm):
    """A method with a field of each kind; it is never run."""

    def init(self, task: Any) -> Any: ...

    def round(self, s: Any, r: Any) -> Any: ...


@pytest.fixture
def made() -> Iterator[Any]:
    """Makes a method `own` with one field `x`, and forgets it afterwards."""

    def make(annotation: Any, field: Any, **attributes: Any) -> type[Algorithm]:
        body = {"__annotations__": {"x": annotation}, "x": field, "__module__": __name__, **attributes}
        body["__annotations__"] |= dict.fromkeys(attributes, ClassVar[Any])
        ALGORITHMS._found.pop("own", None)
        return register("own")(type("Own", (Bounded,), body))

    yield make
    ALGORITHMS._found.pop("own", None)


@pytest.mark.parametrize(
    ("annotation", "field", "expected"),
    [
        # two bounds: from bound to bound; evenly in the logarithm from a ratio of 100
        (float, Field(0.5, ge=0, le=1), {"float": [0.0, 1.0]}),
        (float, Field(0.5, ge=0.1, le=9.99), {"float": [0.1, 9.99]}),
        (float, Field(0.5, ge=0.1, le=10), {"float": [0.1, 10.0], "log": True}),
        (float, Field(-0.5, ge=-1, le=1000), {"float": [-1.0, 1000.0]}),
        (int, Field(5, ge=1, le=10), {"int": [1, 10]}),
        (int, Field(5, ge=1, le=100), {"int": [1, 100], "log": True}),
        (int, Field(5, ge=0, le=1000), {"int": [0, 1000]}),
        # an open bound moves inwards: 1 of an int, a thousandth of the range of a float, not past the default
        (float, Field(0.5, gt=0, le=1), {"float": [0.001, 1.0], "log": True}),
        (float, Field(0.5, ge=0, lt=1), {"float": [0.0, 0.999]}),
        (float, Field(0.01, gt=0, le=1000), {"float": [0.01, 1000.0], "log": True}),
        (float, Field(0.9999, ge=0, lt=1), {"float": [0.0, 0.9999]}),
        (int, Field(3, gt=0, lt=10), {"int": [1, 9]}),
        # one bound: a factor of ten around the default, cut at the bound
        (float, Field(0.1, ge=0), {"float": [0.01, 1.0], "log": True}),
        (float, Field(0.1, gt=0), {"float": [0.01, 1.0], "log": True}),
        (float, Field(0.1, ge=0.05), {"float": [0.05, 1.0]}),
        (float, Field(0.5, le=1), {"float": [0.05, 1.0]}),
        (float, Field(3.0, gt=2), {"float": [2.028, 30.0]}),
        (int, Field(5, ge=1), {"int": [1, 50]}),
        (int, Field(20, ge=1), {"int": [2, 200], "log": True}),
        # all values of a switch or a choice
        (bool, Field(True), {"choice": [False, True]}),
        (Literal["a", "b"], Field("b"), {"choice": ["a", "b"]}),
        (Literal["a", "b"] | None, Field(None), {"choice": ["a", "b", None]}),
        # a number or none, where the default is a number
        (float | None, Field(0.5, ge=0, le=1), {"float": [0.0, 1.0]}),
    ],
)
def test_range_of_a_field(made: Any, annotation: Any, field: Any, expected: dict[str, Any]) -> None:
    space = from_fields(made(annotation, field))
    entry = space.as_yaml()["algorithm.x"]
    assert entry.keys() == expected.keys()
    for word, value in expected.items():
        assert entry[word] == (pytest.approx(value) if word in ("float", "int") else value)
    assert space.first[0]["algorithm.x"] == field.default
    spaces.check(space, Experiment.of("own"))


@pytest.mark.parametrize(
    ("annotation", "field"),
    [
        (float, Field(0.1)),  # no bound
        (float, Field(0.0, ge=0)),  # nothing to be around
        (float, Field(-1.0, le=0)),
        (int | None, Field(None, ge=1, le=10)),  # none stays none
        (float, Field(1.0, ge=1, le=1)),  # one value
        (int | float | str, Field(1)),
        (str, Field("a")),
        (list[int], Field([1])),
        (Part, Field(Part())),
    ],
)
def test_field_that_keeps_its_default(made: Any, annotation: Any, field: Any) -> None:
    """Nothing but the training's own ranges is varied."""
    space = from_fields(made(annotation, field))
    assert [p.key for p in space.parameters] == ["training.lr", "training.local_epochs"]
    assert space.first == ({"training.lr": 0.05, "training.local_epochs": 1},)
    spaces.check(space, Experiment.of("own"))


def test_training_is_varied_as_in_the_shipped_spaces() -> None:
    shipped = spaces.read(spaces.finding.SHIPPED[-1], "fedavg").as_yaml()
    assert {path: shipped[path] for path in TRAINING} == TRAINING


def test_what_a_method_requires_or_recommends_is_seen(made: Any) -> None:
    method = made(float, Field(0.5, ge=0, le=1), requires={"training.local_epochs": 1})
    assert [p.key for p in from_fields(method).parameters] == ["algorithm.x", "training.lr"]
    spaces.check(from_fields(method), Experiment.of("own"))
    method = made(float, Field(0.5, ge=0, le=1), recommended={"training.lr": 0.25})
    assert from_fields(method).first[0]["training.lr"] == 0.25
    method = made(float, Field(0.5, ge=0, le=1), recommended={"training.lr": 0.75})  # beyond the range
    assert from_fields(method).first == ()


def test_a_file_goes_before_the_fields(made: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made(float, Field(0.5, ge=0, le=1))
    monkeypatch.chdir(tmp_path)
    assert spaces.read(None, "own").source == "the fields of own"
    (tmp_path / "search_spaces").mkdir()
    with pytest.raises(PflOpsError, match=r"has no own\.yaml"):  # a folder that is named has to have the file
        spaces.read("search_spaces", "own")
    (tmp_path / "search_spaces" / "own.yaml").write_text("algorithm.x: {float: [0.25, 0.75]}")
    assert spaces.read(None, "own").source == "search_spaces/own.yaml"


def test_a_study_takes_it_and_show_prints_it(made: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from pfl_ops.cli import app
    from pfl_ops.tuning.studies.settings import Settings

    made(float, Field(0.1, ge=0, title="μ"), own_stage="G")
    monkeypatch.chdir(tmp_path)
    settings = Settings.of(Experiment.of("own", dataset="digits"), hold=["training.local_epochs"])
    assert [p.key for p in settings.space.parameters] == ["algorithm.x", "training.lr"]
    assert Settings.from_dict(settings.as_dict()).space == settings.space
    shown = CliRunner().invoke(app, ["show", "own"]).stdout
    assert "search space  (the fields of own)" in shown and "0.01 to 1 (log)" in shown
