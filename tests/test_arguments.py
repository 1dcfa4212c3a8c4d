"""Keyword arguments that do not exist."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pfl_ops import benchmark, compare, repeat, run, tune
from pfl_ops.config.arguments import ArgumentError
from pfl_ops.config.experiment import FLAGS, Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.tuning import reproduce

FUNCTIONS = [run, tune, benchmark, compare]


@pytest.mark.parametrize(
    ("method", "name", "message"),
    [
        ("fliu", "datset", "no setting named 'datset'. Did you mean 'dataset'? (pfl-ops list settings)"),
        ("fliu", "round", "Did you mean 'rounds'?"),
        ("pfedme", "beta", "Did you mean 'algorithm.beta', as **{'algorithm.beta': ...}?"),
        ("pfedme", "betta", "Did you mean 'algorithm.beta'"),
        ("ditto", "lam", "Did you mean 'algorithm.lam'"),
        ("ditto", "momentum", "Did you mean 'training.momentum', as **{'training.momentum': ...}?"),
        ("ditto", "gamma", "no setting named 'gamma'. ditto has no gamma; fliu, drfa, "),
        ("fliu", "zzzz", "Short names: dataset, train_size, "),
    ],
)
def test_experiment_of_wrong_keyword_names_the_nearest(method: str, name: str, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Experiment.of(method, **{name: 1})
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_experiment_of_takes_sections_paths_and_short_names() -> None:
    experiment = Experiment.of("ditto", data={"name": "mnist"}, rounds=3, **{"algorithm.lam": 2})
    assert (experiment.data.name, experiment.training.rounds, experiment.get("algorithm.lam")) == ("mnist", 3, 2)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tracking_url", "Did you mean 'tracking_uri'?"),
        ("batch_size", "It is a setting: Experiment.of(..., batch_size=...)"),
    ],
)
def test_public_function_wrong_keyword_names_the_nearest(function: Any, name: str, hint: str) -> None:
    with pytest.raises(PflOpsError) as caught:
        function(**{name: 1})
    assert str(caught.value) == f"{function.__name__}() has no argument '{name}'. {hint}"
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("function", [run, repeat, tune], ids=lambda function: function.__name__)
def test_public_function_refuses_a_name_as_experiment(function: Any) -> None:
    line = f"{function.__name__}() takes an Experiment, got 'ditto': {function.__name__}(Experiment.of(\"ditto\", ...))"
    for call in (lambda: function("ditto"), lambda: function(experiment="ditto")):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert str(caught.value) == line


@pytest.mark.parametrize(
    ("given", "got"),
    [
        (["aa"], "a list"),
        (Experiment, "the class Experiment"),
        ({"data": 1}, "a dict"),
    ],
)
def test_what_is_no_experiment_is_refused(given: Any, got: str) -> None:
    for function in (run, tune, repeat):
        with pytest.raises(ArgumentError) as caught:
            function(given)
        name = function.__name__
        assert str(caught.value) == f"{name}() takes an Experiment, got {got}: {name}(Experiment.of(...))"


@pytest.mark.parametrize("function", [run, repeat], ids=lambda function: function.__name__)
def test_no_experiment_is_refused_where_one_is_needed(function: Any) -> None:
    """`tune` without one goes on with a study."""
    with pytest.raises(ArgumentError, match=r"takes an Experiment, got None: "):
        function(None)


def test_benchmark_refuses_one_experiment() -> None:
    with pytest.raises(ArgumentError, match=r"benchmark\(\) takes Experiments, got an Experiment: benchmark\(\["):
        benchmark(Experiment.of("fedavg"))


def test_benchmark_refuses_names_as_experiments() -> None:
    line = "benchmark() takes Experiments, got 'ditto': benchmark([Experiment.of(\"ditto\", ...), ...])"
    for given in (["ditto", "fedavg"], "ditto", [Experiment.of("fedavg"), "ditto"]):
        with pytest.raises(ArgumentError) as caught:
            benchmark(given)  # type: ignore[arg-type]
        assert str(caught.value) == line


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_public_function_keeps_its_signature(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    assert "home" in parameters and not FLAGS.keys() & parameters.keys()


@pytest.mark.parametrize("function", [*FUNCTIONS, reproduce], ids=lambda function: function.__name__)
def test_public_function_has_no_parameter_for_tests(function: Any) -> None:
    """Tests replace trials, test runs, work and the compared store where these are looked up."""
    parameters = inspect.signature(function).parameters.keys()
    assert not parameters & {"records", "final", "work"}
    assert "store" not in parameters or function is run  # there it is for callers that track several runs


def test_data_may_be_a_path_and_no_array(tmp_path: Path) -> None:
    """A path was "no text", an array a "truth value ... is ambiguous", a folder of data an AttributeError."""
    one = Experiment.of("local", dataset=tmp_path / "mine.npz", partition="iid", model="mlp")
    assert one.data.name == str(tmp_path / "mine.npz")
    with pytest.raises(PflOpsError, match=r"data.name must be a text.*got an object of type ndarray; write arrays"):
        Experiment.of("local", dataset=np.zeros((3, 3)))
    digits = Experiment.of("fedavg", dataset="digits", model="linear", clients=4, rounds=1, train_size=100)
    folder: Any = tmp_path
    assert digits.clients(data_dir=folder).train.n_clients == 4


@pytest.mark.parametrize(
    ("part", "name", "message"),
    [
        ("", "seed", "'seed' is not changed in place; experiment.override({PATH: value}) returns another experiment"),
        ("training", "lr", "'lr' is not changed in place; experiment.override("),
        ("algorithm", "lam", "self.lam is set, a hyper-parameter; experiment.override({'algorithm.lam': ...})"),
    ],
)
def test_setting_that_is_changed_in_place_names_override(part: str, name: str, message: str) -> None:
    experiment = Experiment.of("ditto", dataset="digits")
    with pytest.raises(PflOpsError) as caught:
        setattr(experiment.get(part) if part else experiment, name, 3)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["cpu", {"device": "cpu"}])
def test_execution_that_is_none_is_refused(given: Any) -> None:
    for function in (run, tune, repeat):
        with pytest.raises(ArgumentError) as caught:
            function(Experiment.of("fedavg"), execution=given)
        assert 'execution=Execution(device="cpu")), of pfl_ops.federation.settings' in str(caught.value)


@pytest.mark.parametrize(("given", "kind"), [([Path("a")], "a list"), (Path("a"), "a PosixPath")])
def test_compare_of_what_is_no_name_says_how_runs_are_named(given: Any, kind: str) -> None:
    """A result, a study and a list are natural to give: a name is looked for as text."""
    with pytest.raises(ArgumentError) as caught:
        compare("fliu*", given)
    told = "compare(result.hash, other.hash), compare(study.name), compare(*names)"
    assert str(caught.value) == f"compare() takes names of runs and studies as text, got {kind}: {told}"
