"""Properties of all of the package's methods together."""

import hashlib
import inspect
import os
import random
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import pfl_ops
from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.algorithms.base import Algorithm, Models, Rows
from pfl_ops.federation.network.cross_entropy import cross_entropy
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, ragged_task

NAMES = list(ALGORITHMS.builtin)
TRAINING = Training(rounds=3, local_epochs=1, batch_size=3, lr=0.2, lr_decay=0.9, precision="float64")


def played(name: str, stack: int | None) -> MethodSimulation:
    method = ALGORITHMS.get(name)()
    counted = {"local_epochs": None, "local_steps": 3} if "training.local_steps" in method.requires else {}
    slower = {"lr": 0.05} if name == "pfedme" else {}  # η λ < 1
    play = MethodSimulation(ragged_task(), method, TRAINING.model_copy(update=counted | slower), stack=stack)
    play.run([[0, 2, 3], None, [1, 4]])
    return play


def digests() -> dict[str, str]:
    """SHA-256 of every method's last state and models."""
    found = {}
    for name in NAMES:
        play = played(name, 5)
        held, text = play.personal(), hashlib.sha256()
        for key, value in sorted(play.values({} if held is None else {"L1": held}).items()):
            text.update(key.encode() + value.numpy().tobytes())
        found[name] = text.hexdigest()
    return found


def test_the_same_result_in_another_process():
    """Bit for bit: nothing hangs on hash seeds, on import order or on what ran before.

    Variables of the linear algebra library stay: on some machines they choose its kernels, which round differently.
    """
    code = "import torch; torch.set_num_threads(1); import test_methods as t; print(*t.digests().values())"
    paths = [str(Path(__file__).parent), str(Path(pfl_ops.__file__).parents[1])]
    kernels = {name: value for name, value in os.environ.items() if name.startswith(("OPENBLAS_", "MKL_"))}
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths}; {code}"],
        capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7", "PATH": "", **kernels},
    )  # fmt: skip
    torch.set_num_threads(1)
    assert found.stdout.split() == list(digests().values())


@pytest.mark.parametrize("name", NAMES)
def test_tuning_has_something_to_look_at(name):
    """The stage that a method names as its clients' own exists, from the first round on."""
    play = played(name, 5)
    play.t = 0
    assert play.method.own_stage in play.round()


@pytest.mark.parametrize("name", NAMES)
def test_a_method_says_what_it_is(name):
    """`show` prints the docstring: the equation, and what is kept, scored and sent; every field says what it means."""
    method = ALGORITHMS.get(name)
    assert issubclass(method, Algorithm) and method.name == name
    text = inspect.getdoc(method) or ""
    at = [text.index(f"\n{part}: ") for part in ("State", "Stages", "Sent", "Source", "Deviations")]
    assert at == sorted(at) and "←" in text[: at[0]], "equation, State, Stages, Sent, Source, Deviations, in this order"
    for field, info in method.model_fields.items():
        assert info.description, f"{name}.{field} has no description"


def test_each_method_inherits_the_contract():
    """A file of tests for each, and in it the class that inherits."""
    for name in NAMES:
        file = Path(__file__).parents[1] / "algorithms" / f"test_{name}.py"
        assert "(AlgorithmContract)" in file.read_text(encoding="utf-8"), f"{file.name} does not inherit the contract"


def test_the_page_of_methods_is_true():
    """docs/methods.md has a row for each method, and the tests that it names exist."""
    root = Path(__file__).parents[2]
    rows = [line.split("|") for line in (root / "docs" / "methods.md").read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if len(row) == 5 and row[1].strip().startswith("`")]
    assert sorted(re.findall(r"`(\w+)`", "".join(row[1] for row in rows))) == sorted(NAMES)
    for row in rows:
        file = ""
        for named, test in re.findall(r"`(?:(test_\w+\.py)::)?(test_\w+)`", row[3]):
            file = named or file
            text = (root / "tests" / "algorithms" / file).read_text(encoding="utf-8")
            assert f"def {test}(" in text, f"{file} has no {test}"
        assert file, f"no test is named for {row[1]}"


# -- the contract sees what it is for ----------------------------------------------------------------------------------


class Averaging(Algorithm):
    """A sound method to break: a mean of locally trained models, and a count of rounds that a client took part in."""

    boost: float = 0.5

    def init(self, task):
        return {"central": task.initial, "seen": task.rows(torch.zeros_like(task.initial[0]))}

    def round(self, s, r):
        theta = r.train(s["central"], pull=(self.boost, s["central"]))
        central = r.weights @ theta
        seen = Rows(r.cohort, s["seen"][r.cohort] + 1)
        return {"central": central, "seen": seen}, {"L2": Models(theta, r.cohort), "G": Models(central)}

    def personal(self, s, r):
        return Models(s["central"])


def broken(change):
    """`Averaging` whose round passes through `change(self, s, r, update, stages)`."""

    class Broken(Averaging):
        def round(self, s, r):
            update, stages = super().round(s, r)
            return change(self, s, r, update, stages) or (update, stages)

    Broken.name = "broken"
    return Broken()


def mutates(self, s, r, update, stages):
    s["central"].add_(1)


def grows(self, s, r, update, stages):
    update["more"] = update["central"]


def changes_type(self, s, r, update, stages):
    update["central"] = update["central"].double()


def draws_elsewhere(self, s, r, update, stages):
    update["central"] = update["central"] + torch.randn(())


def writes_to_all(self, s, r, update, stages):
    everyone = torch.arange(r.task.n_clients)
    update["seen"] = Rows(everyone, s["seen"][everyone] + 1)


def keeps_things_on_self(self, s, r, update, stages):
    counts = self.__dict__.setdefault("_counts", [])
    counts.append(1)
    update["central"] = update["central"] + len(counts)


def forgets_the_rows(self, s, r, update, stages):
    del update["seen"]


def gives_parts(self, s, r, update, stages):
    stages["L2"] = Models(stages["L2"].params[:, :5], r.cohort)


def divides_by_nothing(self, s, r, update, stages):
    update["central"] = update["central"] / (r.counts.sum() - len(r.cohort))


KEPT = {}


def keeps_things_in_a_global(self, s, r, update, stages):
    """The models of the round before, by client and round, as scripts keep them."""
    for k, row in zip(r.cohort.tolist(), stages["L2"].params, strict=True):
        update["central"] = update["central"] + 0.01 * KEPT.get((k, r.t - 1), row).to(row)
        KEPT[k, r.t] = row


def collects_in_a_step(self, s, r, update, stages):
    """A list that a step fills: in another process it is a copy."""
    lengths = []

    def step(m, b):
        lengths.append(float(b.grad(m["w"]).norm()))
        return {}

    r.walk({"w": stages["L2"].params}, step, stream="lengths")
    update["central"] = update["central"] + sum(lengths)


def scores_other_clients(self, s, r, update, stages):
    """Each trained model is said to be of another client of the cohort."""
    stages["L2"] = Models(stages["L2"].params.flip(0), r.cohort)


def follows_the_first(self, s, r, update, stages):
    update["central"] = stages["L2"].params[0]


@pytest.mark.parametrize(
    ("change", "tests"),
    [
        (mutates, ["test_inputs_are_not_mutated"]),
        (grows, ["test_an_update_only_names_what_init_made", "test_state_keeps_its_form"]),
        (changes_type, ["test_state_keeps_its_form"]),
        (draws_elsewhere, ["test_the_same_seed_gives_the_same"]),
        (writes_to_all, ["test_clients_outside_the_cohort_keep_what_they_have"]),
        (keeps_things_on_self, ["test_stopped_and_resumed_is_not_stopped", "test_the_same_seed_gives_the_same"]),
        (keeps_things_in_a_global, ["test_stopped_and_resumed_is_not_stopped"]),
        (collects_in_a_step, ["test_workers_agree"]),
        (forgets_the_rows, ["test_every_state_changes"]),
        (gives_parts, ["test_an_update_only_names_what_init_made"]),
        (divides_by_nothing, ["test_state_keeps_its_form"]),
        (scores_other_clients, ["test_numbers_of_clients_do_not_matter"]),
        (follows_the_first, ["test_numbers_of_clients_do_not_matter"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_contract_notices(change, tests):
    contract = type("Contract", (AlgorithmContract,), {"algorithm": broken(change)})()
    for test in tests:
        with pytest.raises((AssertionError, pfl_ops.errors.PflOpsError)):
            getattr(contract, test)()


def draws_from_python(self, s, r, update, stages):
    update["central"] = update["central"] * (1 + 0.01 * random.random())


def test_the_contract_names_a_draw_without_a_seed():
    """The first test said that a step sums over the rows of other clients."""
    contract = type("Contract", (AlgorithmContract,), {"algorithm": broken(draws_from_python)})()
    for test in (contract.test_loop_and_vmap_agree, contract.test_order_of_clients_does_not_matter):
        with pytest.raises(AssertionError, match=r"two runs of one seed differ in .*; draw by r\.rng\(purpose\)"):
            test()


def test_the_contract_names_a_nan():
    """NaN after round 2 in both of two runs was a difference "by nan", with advice on rows, padding, attributes."""
    contract = type("Contract", (AlgorithmContract,), {"algorithm": broken(divides_by_nothing)})()
    for test in (contract.test_loop_and_vmap_agree, contract.test_padding_does_not_matter):
        test()
    with pytest.raises(AssertionError, match="has a NaN or an infinity"):
        contract.test_state_keeps_its_form()


def test_a_constant_state_is_named():
    """A state that `round` does not return stayed as it was, in silence."""
    contract = type("Contract", (AlgorithmContract,), {"algorithm": broken(forgets_the_rows)})()
    with pytest.raises(AssertionError, match="no round changes state 'seen'; return it from round"):
        contract.test_every_state_changes()
    type(contract).constant = ("seen",)
    contract.test_every_state_changes()


def pulled(net, w, x, y, *, anchor):
    return cross_entropy(net, w, x, y) + 0.1 * (w - anchor).square().sum()


@pytest.mark.parametrize("bound", [True, False])
def test_the_contract_notices_a_loss_that_binds_rows(bound):
    """Each client was pulled to the models of all, and all backends agreed."""

    class Pulled(Averaging):
        def init(self, task):
            return super().init(task) | {"theta": task.rows(task.initial)}

        def round(self, s, r):
            own = s["theta"][r.cohort]
            if bound:
                theta = r.train(s["central"], partial(pulled, anchor=own))
            else:
                theta = r.train(s["central"], pulled, ctx={"anchor": own})
            return {"central": r.weights @ theta, "theta": Rows(r.cohort, theta)}, {"L2": Models(theta, r.cohort)}

    Pulled.name = "pulled"
    contract = type("Contract", (AlgorithmContract,), {"algorithm": Pulled()})()
    contract.test_loop_and_vmap_agree()
    contract.test_workers_agree()
    if not bound:
        contract.test_no_function_binds_rows_of_clients()
        return
    with pytest.raises(AssertionError, match=r"'pulled': pulled\(\) binds a tensor with a row for each client"):
        contract.test_no_function_binds_rows_of_clients()


class OneByOne(Averaging):
    """`Averaging` with a loop over the cohort, as methods of other libraries have it."""

    def round(self, s, r):
        each = [r.over(r.cohort[i : i + 1]) for i in range(len(r.cohort))]
        theta = torch.cat([own.train(s["central"], pull=(self.boost, s["central"])) for own in each])
        seen = Rows(r.cohort, s["seen"][r.cohort] + 1)
        return {"central": r.weights @ theta, "seen": seen}, {"L2": Models(theta, r.cohort)}


def test_the_contract_accepts_a_loop_over_clients():
    """One client's batches have no padding, which was said to be an error of the method."""
    OneByOne.name = "one_by_one"
    contract = type("Contract", (AlgorithmContract,), {"algorithm": OneByOne()})()
    for test in sorted(dir(contract)):
        if test.startswith("test_"):
            getattr(contract, test)()


def test_the_contract_names_l1_by_position():
    class ByPosition(Averaging):
        def init(self, task):
            return super().init(task) | {"theta": task.rows(task.initial)}

        def round(self, s, r):
            update, stages = super().round(s, r)
            return update | {"theta": Rows(r.cohort, stages["L2"].params)}, stages

        def personal(self, s, r):
            return Models(s["theta"][torch.arange(len(r.cohort))], r.cohort)

    ByPosition.name = "by_position"
    contract = type("Contract", (AlgorithmContract,), {"algorithm": ByPosition()})()
    with pytest.raises(AssertionError, match=r"'by_position': L1 of clients \[3\] differs by .*s\[name\]\[r\.cohort\]"):
        contract.test_order_of_clients_does_not_matter()


class Halfway(Algorithm):
    """The README's method, whose clients keep their models; `trained` and `held` are the clients of whom it asks."""

    def trained(self, r):
        return r.cohort

    def held(self, r):
        return r.cohort

    def init(self, task):
        return {"theta": task.rows(task.initial)}

    def round(self, s, r):
        theta = r.train(s["theta"][self.trained(r)])
        central = r.weights @ theta
        return {"theta": Rows(r.cohort, (theta + central) / 2)}, {"L2": Models(theta, r.cohort), "G": Models(central)}

    def personal(self, s, r):
        return Models(s["theta"][self.held(r)], r.cohort)


@pytest.mark.parametrize(
    ("verb", "clients"),
    [
        ("trained", lambda self, r: torch.arange(len(r.cohort))),  # positions in the cohort for client numbers
        ("trained", lambda self, r: (r.cohort + 1) % r.task.n_clients),
        ("held", lambda self, r: (r.cohort + 1) % r.task.n_clients),
        ("held", lambda self, r: r.cohort.flip(0)),
    ],
)
def test_the_contract_notices_the_state_of_another_client(verb, clients):
    Halfway.name = "halfway"
    sound = type("Contract", (AlgorithmContract,), {"algorithm": Halfway()})()
    sound.test_numbers_of_clients_do_not_matter()
    wrong = type("Contract", (AlgorithmContract,), {"algorithm": type("Wrong", (Halfway,), {verb: clients})()})()
    with pytest.raises(AssertionError, match=r"the same clients under other numbers differ in .*\[r\.cohort\]"):
        wrong.test_numbers_of_clients_do_not_matter()


@pytest.mark.parametrize(
    ("draw", "test", "words"),
    [
        (lambda s, n, g: g.choice(n, 3), "test_a_client_may_be_drawn_twice", "counts once; weight by r.weights"),
        (
            lambda s, n, g: np.random.default_rng().choice(n, 3),
            "test_own_cohort_depends_on_its_arguments_alone",
            "from equal generators; draw from its generator alone",
        ),
        (
            lambda s, n, g: s["central"].add_(1) * 0 + g.integers(n),
            "test_own_cohort_depends_on_its_arguments_alone",
            r"cohort\(\) changed state 'central' in place",
        ),
    ],
)
def test_the_contract_notices_a_wrong_cohort(draw, test, words):
    class Draws(Averaging):
        def cohort(self, s, task, generator):
            return torch.as_tensor(draw(s, task.n_clients, generator)).long()

        def round(self, s, r):
            theta = r.train(s["central"], pull=(self.boost, s["central"]))
            return {"central": theta.mean(dim=0)}, {"L2": Models(theta, r.cohort)}

    Draws.name = "draws"
    contract = type("Contract", (AlgorithmContract,), {"algorithm": Draws()})()
    with pytest.raises((AssertionError, pfl_ops.errors.PflOpsError), match=f"method 'draws': .*{words}"):
        getattr(contract, test)()


def test_an_option_of_a_methods_own_cohort_has_an_effect():
    """The share of clients that it draws changes no other number."""

    class Draws(Averaging):
        number: int = 2

        def cohort(self, s, task, generator):
            return torch.from_numpy(generator.choice(task.n_clients, self.number, replace=False))

    Draws.name = "draws"
    contract = type("Contract", (AlgorithmContract,), {"algorithm": Draws()})()
    contract.test_every_hyper_parameter_changes_something()
    contract.test_own_cohort_depends_on_its_arguments_alone()


def test_the_contract_accepts_a_sound_method():
    Averaging.name = "averaging"
    contract = type("Contract", (AlgorithmContract,), {"algorithm": Averaging()})()
    for test in sorted(dir(contract)):
        if test.startswith("test_"):
            getattr(contract, test)()


def test_the_contract_notices_a_field_that_does_nothing():
    class Idle(Averaging):
        idle: int = 3

    Idle.name = "idle"
    contract = type("Contract", (AlgorithmContract,), {"algorithm": Idle()})()
    with pytest.raises(AssertionError, match="idle=3 and 4 give the same"):
        contract.test_every_hyper_parameter_changes_something()
