"""Search spaces: a mistake is one line with file and key before anything runs; what is drawn, the experiment takes."""

import pickle

import numpy as np
import optuna
import pytest

from pfl_ops import spaces
from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.spaces import checking
from pfl_ops.tuning import Settings

GAMMA = """
algorithm.gamma.value: {float: [0.0, 1.0], step: 0.25, when: {algorithm.gamma.kind: fixed}}
algorithm.gamma.low: {float: [0.0, 0.5], when: {algorithm.gamma.kind: [range, size_power]}}
algorithm.gamma.high: {float: [0.5, 1.0], when: {algorithm.gamma.kind: [range, size_power]}}
algorithm.gamma.kind: {choice: [fixed, adaptive, range, size_power]}
training.lr: {float: [1e-4, 1e-1], log: true}
training.local_epochs: {int: [1, 5], step: 2}
first:
  - {algorithm.gamma.kind: adaptive, training.lr: 0.01, training.local_epochs: 1}
  - {algorithm.gamma.kind: fixed, algorithm.gamma.value: 0.5, training.lr: 1e-3, training.local_epochs: 5}
"""


@pytest.fixture(scope="module")
def fliu():
    return Experiment.of("fliu")


@pytest.mark.parametrize("algorithm", ALGORITHMS.builtin)
def test_the_shipped_spaces_fit_their_methods(algorithm):
    for preset in (None, "paper"):
        spaces.check(spaces.read(spaces.finding.SHIPPED[-1], algorithm), Experiment.of(algorithm, preset=preset))


@pytest.mark.parametrize("algorithm", ALGORITHMS.builtin)
def test_the_shipped_spaces_begin_with_the_method_as_it_is(algorithm):
    """The first trial of each is a point that somebody would have run without a tuner."""
    assert spaces.read(spaces.finding.SHIPPED[-1], algorithm).first


def test_a_point_has_what_its_conditions_ask_for_and_nothing_else(fliu):
    space = spaces.parse(GAMMA)
    spaces.check(space, fliu)
    generator = np.random.default_rng(0)
    seen = set()
    for _ in range(200):
        point = space.draw(generator)
        kind = point["algorithm.gamma.kind"]
        seen.add(kind)
        assert ("algorithm.gamma.value" in point) == (kind == "fixed")
        assert (
            ("algorithm.gamma.low" in point) == ("algorithm.gamma.high" in point) == (kind in ("range", "size_power"))
        )
        assert point.get("algorithm.gamma.value", 0.0) in (0.0, 0.25, 0.5, 0.75, 1.0)
        assert point["training.local_epochs"] in (1, 3, 5)
        assert 1e-4 <= point["training.lr"] <= 1e-1
    assert seen == {"fixed", "adaptive", "range", "size_power"}


def test_optuna_draws_from_it_as_we_do():
    """The same keys and bounds: every first point is one that Optuna can be asked for, and none is left to chance."""
    space = spaces.parse(GAMMA)
    for point in space.first:
        assert space(optuna.trial.FixedTrial(point)) == point
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(lambda trial: float(len(space(trial))), n_trials=20)
    assert all(spaces.space.point_problem(space.parameters, t.params) is None for t in study.trials)


def test_it_survives_pickle_and_yaml():
    space = spaces.parse(GAMMA)
    assert pickle.loads(pickle.dumps(space)) == space
    again = spaces.from_dict(space.as_yaml())
    assert again.parameters == space.parameters and again.digest == space.digest
    assert spaces.parse(GAMMA.replace("0.25", "0.5")).digest != space.digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "training.lrr: {float: [0.1, 1]}",
            "training.lrr: the experiment has no such field. Did you mean 'training.lr'?",
        ),
        ("training.lr: {float: [0, 1]}", "training.lr (η) must be a number in (0, 1,000,000], got 0.0"),
        ("training.lr_decay: {float: [0.5, 1.5]}", "training.lr_decay must be a number in (0, 1], got 1.5"),
        ("training.local_epochs: {float: [1, 2]}", "must be an integer in [1, 10,000] or none, not drawn as float"),
        ("training.optimiser: {int: [1, 2]}", "must be one of sgd, adam, not drawn as int"),
        ("training.optimiser: {choice: [adm]}", "training.optimiser must be one of sgd, adam, got 'adm'"),
        ("training.lr: {flaot: [1, 2]}", "training.lr: unknown word 'flaot'. Did you mean 'float'?"),
        ("training.lr: {float: [1, 2], int: [1, 2]}", "give one of float, int, choice; found float and int"),
        ("training.lr: {log: true}", "give one of float, int, choice; found none"),
        ("training.lr: 0.1", "training.lr: must be {float: [low, high]}"),
        ("training.lr: {float: [2, 1]}", "low must be at most high, got [2, 1]"),
        ("training.lr: {float: [1]}", "float needs two numbers"),
        ("training.lr: {float: [a, b]}", "float needs two numbers"),
        ("training.lr: {float: [0, 1], log: true}", "log needs bounds above 0, got 0"),
        ("training.lr: {float: [0.1, 1], log: true, step: 0.1}", "log and step can't be combined"),
        ("training.lr: {float: [0.1, 1], step: -1}", "step must be a number above 0"),
        ("training.local_epochs: {int: [1, 2.5]}", "int needs whole numbers"),
        ("training.optimiser: {choice: []}", "choice needs a list of values"),
        ("training.optimiser: {choice: [sgd, sgd]}", "names a choice twice"),
        ("training.weight_decay: {choice: [0, 1, 0.0]}", "names a choice twice: 0 and 0.0 are equal"),
        ("training.weight_decay: {float: [0, 1], step: 1e-30}", "step 1e-30 is too small for [0, 1]"),
        ("training.optimiser: {choice: [sgd], log: true}", "log and step belong to float and int"),
        ("seed: {int: [0, 9]}", "seed: is the same in all trials of a study"),
        ("evaluation.split: {choice: [test]}", "evaluation.split: is the same in all trials of a study"),
        ("training.rounds: {int: [1, 9]}", "training.rounds: is the same in all trials of a study"),
        (
            "training.lr: {float: [0.1, 1], when: {training.optimizer: sgd}}\ntraining.optimiser: {choice: [sgd]}",
            "`when` names 'training.optimizer', which is not in this space. Did you mean 'training.optimiser'?",
        ),
        (
            "training.lr: {float: [0.1, 1], when: {training.optimiser: adam}}\ntraining.optimiser: {choice: [sgd]}",
            "`when` can't hold: training.optimiser: 'adam' is not one of ['sgd']",
        ),
        (
            "training.lr: {float: [0.1, 1]}\nalgorithm.gamma.value: {float: [0, 1], when: {training.lr: 0.5}}",
            "my.yaml: algorithm.gamma.value: `when` names training.lr, 0.1 to 1, of which no draw is a given value; "
            "give it a step or a choice",
        ),
        (
            "training.lr: {float: [0.1, 1], when: {training.momentum: 0.1}}\n"
            "training.momentum: {float: [0, 0.5], when: {training.lr: 0.1}}",
            "`when` goes round in a circle: training.lr, training.momentum",
        ),
        (
            "algorithm.gamma.kind: {choice: [fixed, adaptive]}\nalgorithm.gamma.value: {float: [0, 1]}",
            "algorithm.gamma.value: the experiment has no such field (where algorithm.gamma.kind=adaptive)",
        ),
        (
            "algorithm.gamma.kind: {choice: [fixed]}\n"
            "algorithm.gamma.value: {float: [0, 1.5], when: {algorithm.gamma.kind: fixed}}",
            "algorithm.gamma.value (γ) must be a number in [0, 1], got 1.5 (where algorithm.gamma.kind=fixed)",
        ),
        (
            "training.optimiser: {choice: [adam, sgd]}\ntraining.momentum: {float: [0.1, 0.9]}",
            "refused: training: momentum belongs to optimiser sgd, not adam",
        ),
        (
            "training.lr: {float: [0.1, 1]}\nfirst: [{training.lr: 2}]",
            "first: training.lr=2: training.lr: 2 is outside",
        ),
        ("training.lr: {float: [0.1, 1]}\nfirst: [{training.l: 1}]", "'training.l' is not in this space. Did you mean"),
        ("training.lr: {float: [0.1, 1]}\nfirst: [{}]", "training.lr is missing"),
        ("training.lr: {float: [0.1, 1]}\nfirst: {}\n", None),
        ("training.lr: {float: [0.1, 1]}\nfirst: {training.lr: 1}", "first: must be a list of points"),
        (
            "training.lr: {float: [0.1, 1], step: 0.3}\nfirst: [{training.lr: 0.5}]",
            "training.lr: 0.5 is not 0.1 plus a multiple of the step 0.3",
        ),
        (GAMMA.replace("kind: adaptive, ", "kind: fixed, "), "algorithm.gamma.value is missing"),
        (
            GAMMA.replace("kind: fixed, algorithm", "kind: adaptive, algorithm"),
            "algorithm.gamma.value does not exist here: its `when` does not hold",
        ),
        (
            "training.lr: {float: [0.1, 1]}\ntraining.lr: {float: [0.1, 1]}",
            "line 2 is not valid YAML: 'training.lr' is given",
        ),
        ("a: [", "is not valid YAML"),
        ("- a", "must map names to values"),
        ("", "nothing to vary"),
    ],
)
def test_mistakes_are_one_line_with_file_and_key(fliu, text, message):
    if message is None:
        spaces.check(spaces.parse(text, "my.yaml"), fliu)
        return
    with pytest.raises(PflOpsError) as caught:
        spaces.check(spaces.parse(text, "my.yaml"), fliu)
    assert str(caught.value).startswith("my.yaml")
    assert "\n" not in str(caught.value)
    assert message in str(caught.value)


def test_a_method_s_requirement_is_seen(fliu):
    """SCAFFOLD needs plain SGD: a space that varies the optimiser would fail in half of its trials."""
    space = spaces.parse("training.optimiser: {choice: [sgd, adam]}", "my.yaml")
    with pytest.raises(PflOpsError, match=r"my\.yaml: allows training\.optimiser=adam: refused: scaffold needs"):
        spaces.check(space, Experiment.of("scaffold"))


def test_keys_with_one_value_are_not_varied():
    """a and b are fixed, e has another value under each condition on c."""
    text = "a: {float: [0.5, 0.5]}\nb: {choice: [3]}\nc: {choice: [x, y]}\nd: {int: [1, 2]}\n"
    text += "e: [{int: [1, 1], when: {c: x}}, {int: [2, 2], when: {c: y}}]"
    space = spaces.parse(text)
    assert space.keys == ("a", "b", "c", "d", "e") and space.varied == ("c", "d", "e")


@pytest.mark.parametrize(
    ("low", "high", "step", "last"),
    [(0.1, 0.34, 0.02, 0.34), (0.1, 0.8, 0.7, 0.8), (0.1, 0.7, 0.1, 0.7), (0.005, 4.905, 0.7, 4.905)],
)
def test_the_last_step_is_tried(low, high, step, last, recwarn):
    """0.1 + 12 · 0.02 is 0.33999999999999997 as floats, of which Optuna, which counts in decimals, took 11 steps."""
    (lr,) = spaces.parse(f"training.lr: {{float: [{low}, {high}], step: {step}}}").parameters
    distribution = optuna.distributions.FloatDistribution(lr.low, lr.high, step=lr.step)
    assert lr.high == distribution.high == last and not recwarn.list


def test_step_ends_where_the_last_step_does():
    (lr,) = spaces.parse("training.lr: {float: [0.1, 1.0], step: 0.4}").parameters
    assert lr.high == pytest.approx(0.9)


def test_a_user_s_file_or_folder_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert spaces.read(None, "fliu").source.endswith("search_spaces/fliu.yaml")
    own = tmp_path / "search_spaces"
    own.mkdir()
    (own / "fliu.yaml").write_text("training.lr: {float: [0.1, 0.2]}")
    (tmp_path / "mine.yaml").write_text("training.lr: {float: [0.3, 0.4]}")
    assert spaces.read(None, "fliu").parameters[0].low == 0.1
    assert spaces.read(None, "fliu").source == "search_spaces/fliu.yaml"
    assert spaces.read("search_spaces", "fliu").parameters[0].low == 0.1
    assert spaces.read("mine.yaml", "fliu").parameters[0].low == 0.3
    assert len(spaces.read(None, "ditto").parameters) == 4  # not in the user's folder: the package's own
    with pytest.raises(PflOpsError, match=r"search_spaces: has no ditto\.yaml"):
        spaces.read("search_spaces", "ditto")
    with pytest.raises(PflOpsError, match=r"none\.yaml: no such search space file"):
        spaces.read("none.yaml", "fliu")
    with pytest.raises(PflOpsError, match="no search space for 'mine'"):
        spaces.read(None, "mine")


def test_held_fields_keep_the_experiment_s_value(fliu):
    space = spaces.parse(GAMMA)
    without_rate = spaces.hold(space, ["training.lr"], fliu)
    assert "training.lr" not in [p.key for p in without_rate.parameters]
    assert without_rate.first[0] == {"algorithm.gamma.kind": "adaptive", "training.local_epochs": 1}
    adaptive = spaces.hold(space, ["algorithm.gamma.kind"], fliu)  # its own kind: adaptive
    assert [p.key for p in adaptive.parameters] == ["training.lr", "training.local_epochs"]
    assert adaptive.first == ({"training.lr": 0.01, "training.local_epochs": 1},
                              {"training.lr": 0.001, "training.local_epochs": 5})  # fmt: skip
    fixed = spaces.hold(space, ["algorithm.gamma.kind"], fliu.override({"algorithm.gamma.kind": "fixed"}))
    assert fixed.parameters[0].key == "algorithm.gamma.value" and fixed.parameters[0].when == ()
    assert fixed.first == ({"algorithm.gamma.value": 0.5, "training.lr": 0.001, "training.local_epochs": 5},)
    spaces.check(fixed, fliu.override({"algorithm.gamma.kind": "fixed"}))


CHAIN = """
algorithm.gamma.kind: {choice: [fixed, adaptive]}
training.optimiser: {choice: [sgd, adam], when: {algorithm.gamma.kind: [fixed]}}
training.momentum: {float: [0.0, 0.9], when: {training.optimiser: [sgd]}}
"""


@pytest.mark.parametrize(
    ("held", "given", "conditions"),
    [("algorithm.gamma.kind", {"algorithm.gamma.kind": "fixed"},
      {"training.optimiser": {}, "training.momentum": {"training.optimiser": ("sgd",)}}),
     ("algorithm.gamma.kind", {}, {}),  # adaptive: no trial has the second, so none has the third
     ("training.optimiser", {"training.optimiser": "sgd"},
      {"algorithm.gamma.kind": {}, "training.momentum": {"algorithm.gamma.kind": ("fixed",)}}),
     ("training.optimiser", {"training.optimiser": "adam"}, {"algorithm.gamma.kind": {}})],
)  # fmt: skip
def test_a_chain_of_conditions_with_one_held(fliu, held, given, conditions):
    """The third exists by the second, which exists by the first: hold the first, or the second."""
    left = spaces.hold(spaces.parse(CHAIN), [held], fliu.override(given))
    assert {p.key: dict(p.when) for p in left.parameters} == conditions


def test_a_held_section_holds_what_is_below_it(fliu):
    """`--set algorithm.gamma={kind: fixed, value: 0.3}` gives a whole section: no trial may have another kind."""
    given = fliu.override({"algorithm.gamma": {"kind": "fixed", "value": 0.3}})
    held = spaces.hold(spaces.parse(GAMMA), ["algorithm.gamma"], given)
    assert held.keys == ("training.lr", "training.local_epochs")
    assert spaces.hold(spaces.parse(GAMMA), ["algorithm.gam"], given).keys[0] == "algorithm.gamma.kind"


@pytest.mark.parametrize(
    ("method", "given", "cleared"),
    [("pfedme", "training.local_epochs", "training.local_steps"),
     ("fedavg", "training.local_steps", "training.local_epochs")],
)  # fmt: skip
def test_a_held_field_is_not_cleared_by_its_alternative(method, given, cleared):
    """`tune pfedme --local-epochs 2`: the space of pfedme varies steps, and a number of steps clears the epochs."""
    study = Settings.of(Experiment.of(method, **{given: 2}), hold=[given])
    assert cleared not in study.space.keys and "training.lr" in study.space.keys
    assert study.space.first
    assert all(study.experiment.override(point).get(given) == 2 for point in study.space.first)


def test_conditions_on_conditions_are_bounded():
    """Eight choices of ten values, each under all values of the one before: 10^8 combinations, refused at 10^5."""
    ten = list(range(10))
    lines = [f"p0: {{choice: {ten}}}"]
    lines += [f"p{i}: {{choice: {ten}, when: {{p{i - 1}: {ten}}}}}" for i in range(1, 9)]
    space = spaces.parse("\n".join(lines), "my.yaml")
    with pytest.raises(PflOpsError, match=r"^my.yaml: p5: its `when` has over 10,000 combinations$"):
        checking._contexts(space, space.parameters[-1])


def test_condition_on_a_stepped_value_holds_when_it_is_drawn():
    """0.1 + 2 x 0.1 is 0.30000000000000004, so that points with 0.3 and 0.7 had no b."""
    steps = ", ".join(f"0.{i}" for i in range(1, 10))
    space = spaces.parse(f"a: {{float: [0.1, 0.9], step: 0.1}}\nb: {{int: [1, 3], when: {{a: [{steps}]}}}}")
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    points = [space(study.ask()) for _ in range(60)]
    assert len({point["a"] for point in points}) == 9 and all("b" in point for point in points)
    assert 0.1 + 2 * 0.1 in {point["a"] for point in points}


def test_grid_of_fractions_that_a_condition_names_is_a_choice():
    """As a range without a step, the condition would be refused."""
    own = spaces.parse("a: {float: [0.1, 0.9], step: 0.1}\nb: {int: [1, 3], when: {a: 0.3}}")
    axes = {"a": [0.3, 0.5], "b": [1, 2]}
    space = spaces.grid_space(axes, own)
    assert space.parameters[0].choices == (0.3, 0.5)
    assert spaces.grid_points(axes, space) == [{"a": 0.3, "b": 1}, {"a": 0.3, "b": 2}, {"a": 0.5}]
