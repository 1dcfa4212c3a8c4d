"""Tests of the contract that every method keeps."""

import functools
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args, get_origin
from unittest import mock

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from pfl_ops import rng
from pfl_ops.algorithms.base import Algorithm, ClientRows, Models, Round
from pfl_ops.config.conflicts import meets
from pfl_ops.federation.execution.workers import PooledTrainer
from pfl_ops.federation.loop.simulate import commit
from pfl_ops.federation.scoring.stages import made
from pfl_ops.federation.settings import Training
from pfl_ops.federation.state.checkpoint import Checkpoints
from pfl_ops.testing.federations import Federation, ragged_task
from pfl_ops.testing.patches import ProcessesHere, draws_by_size, noting_bound_rows, noting_draws, other_padding
from pfl_ops.testing.simulation import MethodSimulation, Values

ONE_CLIENT = (
    "a step or loss works on one client's row at a time: no sum over the rows of m, no branch on their values, nothing "
    "bound that has a row a client"
)
TWO_RUNS = "two runs of one seed"
STATE_ALONE = "keep nothing outside the state: no attribute, no global"


class AlgorithmContract:
    """Tests of the contract that every method keeps; inherit it and name the method.

    Attributes:
        algorithm: the method, with settings under which all of it is at work.
        pairs: hyper-parameter -> two methods that differ in it alone and must not give the same. Needed where a field's
            effect hangs on another field, or is too rare to be seen; for all other fields a value is found.
        federation: five clients to play with; none: `ragged_task()`.
        cohorts: who takes part, a list a round.
        trainings: ways to train; those that the method's `requires` rules out are left out.
        constant: names of states that no round changes.
    """

    algorithm: ClassVar[Algorithm]
    pairs: ClassVar[Mapping[str, tuple[Algorithm, Algorithm]]] = {}
    federation: ClassVar[Federation | None] = None
    cohorts: ClassVar[Sequence[Sequence[int] | None]] = ([0, 2, 3], None, [1, 4])
    trainings: ClassVar[Sequence[Training]] = (
        Training(rounds=3, local_epochs=1, batch_size=3, lr=0.2, lr_decay=0.9, precision="float64"),
        Training(rounds=3, local_epochs=2, batch_size=4, lr=0.1, momentum=0.9, weight_decay=0.05, precision="float64"),
        Training(
            rounds=3,
            local_epochs=None,
            local_steps=3,
            batch_size=4,
            optimiser="adam",
            lr=0.05,
            weight_decay=0.05,
            precision="float64",
        ),
    )

    constant: ClassVar[Sequence[str]] = ()

    # -- the same numbers, however they are computed -------------------------------------------------------------------

    def test_loop_and_vmap_agree(self) -> None:
        """One client at a time, or any number stacked: the same numbers."""
        for training in self._trainings():
            loop = self._play(training).run(self.cohorts)
            for stack in (2, 5):
                stacked = self._play(training, stack=stack).run(self.cohorts)
                self._agree(loop, stacked, f"loop and stacks of {stack}", ONE_CLIENT, training)

    def test_workers_agree(self) -> None:
        """Steps, losses and rows travel to other processes, which share the cohort: the same numbers."""
        training = self._trainings()[0]
        shared = self._play(training, stack=None)
        shared.trainer = PooledTrainer(shared.trainer, 2)
        shared.trainer.processes = ProcessesHere(shared.trainer.held)  # type: ignore[assignment]
        self._agree(
            self._play(training, stack=None).run(self.cohorts), shared.run(self.cohorts),
            "one process and two workers", "a step or loss may run in another process: it returns what it finds",
            training,
        )  # fmt: skip

    def test_padding_does_not_matter(self) -> None:
        """The padding of short batches has no effect."""
        training = self._trainings()[0]
        with other_padding():
            other = self._play(training).run(self.cohorts)
        self._agree(
            self._play(training).run(self.cohorts), other, "one padding and another",
            "b.mean, b.loss and b.grad leave the padding of b.x and b.y out, b.n counts real samples", training,
        )  # fmt: skip

    def test_order_of_clients_does_not_matter(self) -> None:
        """A cohort is a set; and L1 of some clients is L1 of all, at these clients."""
        training = self._trainings()[0]
        play = self._play(training)
        forth = play.run(self.cohorts)
        back = self._play(training).run([cohort and cohort[::-1] for cohort in self.cohorts])
        self._agree(forth, back, "a cohort and its reverse", "use r.cohort, which is sorted", training, exactly=True)
        for clients in (torch.tensor([3]), torch.tensor([1, 4])):
            some, held = play.personal(clients), play.personal()
            if some is not None and some.clients is not None and held is not None:
                assert torch.equal(some.clients, clients), self._says(
                    "personal() must name the clients whose models it gives: Models(rows, r.cohort)"
                )
                gap = _gap(some.params, held.params[clients])
                assert gap <= 1e-12, self._says(
                    f"L1 of clients {clients.tolist()} differs by {gap:.3g} from theirs in L1 of all; personal() "
                    "takes rows by client number, s[name][r.cohort], and a model depends on its own client alone"
                )

    def test_no_function_binds_rows_of_clients(self) -> None:
        """A loss, step or other function of one client gets its rows by carry or ctx; bound ones are of all clients."""
        play = self._play(self._trainings()[0])
        sizes = [play.task.n_clients if cohort is None else len(set(cohort)) for cohort in self.cohorts]
        bound: list[set[str]] = []
        for cohort in self.cohorts:
            with noting_bound_rows() as names:
                play.round(cohort)
            bound.append(names)
        always = sorted(set.intersection(*bound)) if len(set(sizes)) > 1 else []
        assert not always, self._says(
            f"{', '.join(always)}() binds a tensor with a row for each client of the cohort; pass it by carry or ctx, "
            "from which each client gets its own row"
        )

    def test_numbers_of_clients_do_not_matter(self) -> None:
        """Clients that change numbers take their models along: each uses its own state, and no number is special.

        Full batches, and equal draws of batches and shares for all clients of one size. A method that draws by
        `r.rng` or `task.rng` may draw another client under another number: its models are not compared.
        """
        training = self._trainings()[0].model_copy(update={"batch_size": None})
        n = self._play(training).task.n_clients
        order = torch.tensor([*range(1, n, 2), *range(0, n, 2)])  # new number -> client: neither a shift nor a mirror
        with draws_by_size(), noting_draws() as drawn:
            before = self._models(training, torch.arange(n))
            after = self._models(training, order)
        if not drawn:
            self._agree(
                before, after, "the same clients under other numbers",
                "states and what the task has of clients go by client number, s[name][r.cohort]; rows of a round go by "
                "position in r.cohort; Models(rows, clients) names the client of each row", training,
            )  # fmt: skip

    def test_the_same_seed_gives_the_same(self) -> None:
        """Nothing is drawn from a generator that others draw from too."""
        self._check_repeats(self._trainings()[0])

    # -- state ---------------------------------------------------------------------------------------------------------

    def test_inputs_are_not_mutated(self) -> None:
        """`round` and `personal` read the state; only the engine writes it."""
        play = self._play(self._trainings()[0])
        play.round(self.cohorts[0])
        before, start = play.values(), play.task.initial.clone()
        rows = {name: value.written.clone() for name, value in play.state.items() if isinstance(value, ClientRows)}
        _, stages = play.method.round(play.state, play.at(play.everyone))
        for stage in stages.values():
            made(stage, play.everyone)
        play.personal()
        self._agree(
            [before], [play.values()], "the state before a round and after it, unwritten,",
            "return a new tensor, write into none of s", exactly=True,
        )  # fmt: skip
        for name, written in rows.items():
            assert torch.equal(play.state[name].written, written), self._says(f"rows of state '{name}' were written")
        assert torch.equal(play.task.initial, start), self._says("task.initial was written into")

    def test_state_keeps_its_form(self) -> None:
        """Names, shapes and types are those of `init`, in float64 as in float32; no number is lost to NaN."""
        for precision in ("float64", "float32"):
            play = self._play(self._trainings()[0].model_copy(update={"precision": precision}))
            before = {name: (value.shape, value.dtype) for name, value in play.values().items()}
            last = play.run(self.cohorts)[-1]
            for name, value in last.items():
                assert bool(value.isfinite().all()), self._says(f"{name} has a NaN or an infinity")
                assert value.dtype in (play.dtype, torch.int64, torch.bool), self._says(
                    f"{name} is {value.dtype} in a run of {play.dtype}; make it with .to(task.initial)"
                )
            now = {n: (v.shape, v.dtype) for n, v in last.items() if n.startswith("state/")}
            assert now == before, self._says(f"the state of init() is {before}, later it is {now}")

    def test_an_update_only_names_what_init_made(self) -> None:
        """Stages have whole models, one for all or one for each client of the cohort.

        `CheckedMethod` refuses other states than those of `init`, rows of absent clients, and other stages.
        """
        play = self._play(self._trainings()[0])
        for cohort in self.cohorts:
            r = play.at(play.everyone if cohort is None else cohort)
            update, stages = play.method.round(play.state, r)
            for name, stage in stages.items():
                models = made(stage, r.cohort)
                rows = () if models.clients is None else (len(r.cohort),)
                assert models.params.shape == (*rows, play.task.layout.size), self._says(f"{name} has no whole models")
            commit(play.state, update)
            play.t += 1

    def test_clients_outside_the_cohort_keep_what_they_have(self) -> None:
        """No row of an absent client changes."""
        play = self._play(self._trainings()[0])
        before = play.round([0, 2, 3])
        after = play.round([0, 2])
        for name, value in play.state.items():
            if isinstance(value, ClientRows):
                absent = torch.tensor([1, 3, 4])
                assert torch.equal(before[f"state/{name}"][absent], after[f"state/{name}"][absent]), self._says(
                    f"rows of absent clients change in state '{name}'; return Rows(r.cohort, values)"
                )

    def test_every_state_changes(self) -> None:
        """`round` returns each state that it changes; what it does not return stays as it was."""
        still: set[str] | None = None
        for training in self._trainings():
            play = self._play(training)
            before = play.values()
            play.run(self.cohorts)
            same = {name.removeprefix("state/") for name, v in play.values().items() if torch.equal(v, before[name])}
            still = same if still is None else still & same
        never = sorted((still or set()) - set(self.constant))
        assert not never, self._says(
            f"no round changes state {', '.join(map(repr, never))}; return it from round(), or list it in `constant`"
        )

    def test_a_client_may_be_drawn_twice(self) -> None:
        """It trains once, and counts twice if the method's own cohort has clients twice."""
        training = self._trainings()[0]
        values = self._play(training).round([1, 4, 4])
        assert all(bool(value.isfinite().all()) for value in values.values()), self._says("a NaN or an infinity")
        if any(len(set(drawn)) < len(drawn) for drawn in self._own_cohorts(self.algorithm)):
            once = self._play(training).round([1, 4])
            assert any(not torch.equal(value, once[name]) for name, value in values.items() if name in once), (
                self._says(
                    "a client that its cohort() draws twice counts once; weight by r.weights, r.counts or r.mean"
                )
            )

    def test_own_cohort_depends_on_its_arguments_alone(self) -> None:
        """`cohort` reads the state and draws from the generator that it gets."""
        for first, second in zip(self._own_cohorts(self.algorithm), self._own_cohorts(self.algorithm), strict=True):
            assert first == second, self._says(
                f"cohort() drew {first} and {second} from equal generators; draw from its generator alone"
            )

    def test_stopped_and_resumed_is_not_stopped(self) -> None:
        """Bit for bit, through a checkpoint on disk, in both ways."""
        training = self._trainings()[0]
        for stack in (None, 3):
            whole = self._play(training, stack=stack).run(self.cohorts)
            first, second = self._play(training, stack=stack), self._play(training, stack=stack)
            first.run(self.cohorts[:1])
            other = training.model_copy(update={"lr": training.lr / 2})
            self._play(other, stack=stack).run(self.cohorts)  # leaves other values in what is no state
            with tempfile.TemporaryDirectory() as folder:
                Checkpoints(Path(folder), "contract").save(1, first.state, [], {})
                there = Checkpoints(Path(folder), "contract")
                assert there.latest is not None and not there.complaints
                second.state = there.latest.restore(second.state)
            second.t = 1
            self._agree(
                whole[1:], second.run(self.cohorts[1:]), "a whole run and a resumed one", STATE_ALONE, training,
                exactly=True,
            )  # fmt: skip

    def test_looking_does_not_move_training(self) -> None:
        """L1 may be asked for at any time, or never."""
        training = self._trainings()[0]
        seen, unseen = self._play(training), self._play(training)
        for cohort in self.cohorts:
            seen.personal(torch.tensor([2]))
            seen.round(cohort)
            r = unseen.at(unseen.everyone if cohort is None else cohort)
            commit(unseen.state, unseen.method.round(unseen.state, r)[0])
            unseen.t += 1
        self._agree(
            [seen.values()], [unseen.values()], "a run that was watched and one that was not", STATE_ALONE, exactly=True
        )

    def test_notes_do_not_move_training(self) -> None:
        """Values that a method notes of its clients are for curves alone."""
        training = self._trainings()[0]
        noting = self._play(training).run(self.cohorts)
        with mock.patch.object(Round, "note", lambda self, name, values: None):
            silent = self._play(training).run(self.cohorts)
        heard = [{name: value for name, value in values.items() if not name.startswith("note/")} for values in noting]
        self._agree(heard, silent, "a run with notes and one without", STATE_ALONE, training, exactly=True)

    # -- hyper-parameters ----------------------------------------------------------------------------------------------

    def test_every_hyper_parameter_changes_something(self) -> None:
        """A field that moves neither a number nor the traffic is a field too many, or is not read."""
        for name in type(self.algorithm).model_fields:
            one, other = self.pairs.get(name) or (self.algorithm, _with_another(self.algorithm, name))
            differing = {f for f in type(one).model_fields if getattr(one, f) != getattr(other, f)}
            assert differing == {name}, f"pairs['{name}'] must differ in {name} alone, not in {sorted(differing)}"
            training = self._trainings()[-1]
            plays = [self._play(training, algorithm=x) for x in (one, other)]
            a, b = (play.run(self.cohorts) for play in plays)
            moved = any(x.keys() != y.keys() or x[key].shape != y[key].shape or not torch.equal(x[key], y[key])
                        for x, y in zip(a, b, strict=True) for key in x)  # fmt: skip
            moved = moved or plays[0].traffic != plays[1].traffic or self._own_cohorts(one) != self._own_cohorts(other)
            assert moved, self._says(
                f"{name}={getattr(one, name)!r} and {getattr(other, name)!r} give the same; if it acts rarely, give "
                f"two methods in pairs['{name}']"
            )

    def test_hyper_parameters_survive_their_dump(self) -> None:
        """A method is the same after its hyper-parameters were written to an experiment's file and read."""
        again = type(self.algorithm).model_validate(self.algorithm.model_dump(mode="json"))
        assert again == self.algorithm, self._says(f"{self.algorithm!r} is read from its own dump as {again!r}")

    # -- inside --------------------------------------------------------------------------------------------------------

    def _says(self, message: str) -> str:
        return f"method '{self.algorithm.name or type(self.algorithm).__name__}': {message}"

    def _agree(
        self, a: Sequence[Values], b: Sequence[Values], what: str, mend: str, training: Training | None = None,
        exactly: bool = False,
    ) -> None:  # fmt: skip
        for t, (one, other) in enumerate(zip(a, b, strict=True)):
            assert one.keys() == other.keys(), self._says(f"{what} have other values: {sorted({*one} ^ {*other})}")
            for name in one:
                gap = _gap(one[name], other[name])
                if gap <= (0.0 if exactly else 1e-10):
                    continue
                if training is not None and what != TWO_RUNS:
                    self._check_repeats(training)  # else a draw without a seed is taken for another fault
                how = f" ({training.optimiser}, round {t + 1})" if training else ""
                raise AssertionError(self._says(f"{what} differ in {name}{how} by {gap:.3g}; {mend}"))

    def _check_repeats(self, training: Training) -> None:
        """Refuse a method whose second run of one seed gives other numbers."""
        first = self._play(training).run(self.cohorts)
        torch.manual_seed(1)
        np.random.seed(1)
        second = self._play(training).run(self.cohorts)
        self._agree(first, second, TWO_RUNS, f"draw by r.rng(purpose), and {STATE_ALONE}", training, exactly=True)

    def _models(self, training: Training, order: Tensor) -> list[Values]:
        """The models of each round, rows in the order of the clients' first numbers.

        Args:
            order: the client that has each number, int64 [N].
        """
        federation = self.federation or _ragged()
        pool = replace(federation.pool, index=[federation.pool.index[k] for k in order.tolist()])
        play = MethodSimulation(replace(federation, pool=pool), self.algorithm, training, stack=5)
        number, found = torch.argsort(order), []
        for cohort in self.cohorts:
            r = play.at(play.everyone if cohort is None else number[torch.tensor(cohort)])
            update, stages = play.method.round(play.state, r)
            models: dict[str, Models | None] = {name: made(stage, r.cohort) for name, stage in stages.items()}
            commit(play.state, update)
            models["L1"] = play.personal()
            play.t += 1
            found.append({name: _by_client(some, order).clone() for name, some in models.items() if some is not None})
        return found

    def _own_cohorts(self, algorithm: Algorithm) -> list[list[int]]:
        """Draws of three clients by the method's own `cohort`, before and after a round; []: it has none."""
        if not hasattr(algorithm, "cohort"):
            return []
        play = self._play(self._trainings()[0], algorithm=algorithm)
        task = replace(play.task, cohort_size=min(3, play.task.n_clients))
        found: list[list[int]] = []
        for t in range(20):
            if t == 10:
                play.round()
            found.append(torch.as_tensor(play.method.cohort(play.state, task, rng.generator(0, "cohort", t))).tolist())
        return found

    def _trainings(self) -> list[Training]:
        found = [t for t in self.trainings if _allows(self.algorithm, t)]
        assert found, self._says("its `requires` rules out all of `trainings`; give others")
        return found

    def _play(
        self, training: Training, *, stack: int | None = 5, algorithm: Algorithm | None = None
    ) -> MethodSimulation:
        return MethodSimulation(self.federation or _ragged(), algorithm or self.algorithm, training, stack=stack)


def _gap(one: Tensor, other: Tensor) -> float:
    """Return the largest difference; NaN and infinities of both are none, `test_state_keeps_its_form` refuses them.

    >>> _gap(torch.tensor([1.0, math.nan, math.inf]), torch.tensor([1.5, math.nan, math.inf]))
    0.5
    >>> _gap(torch.tensor([1.0]), torch.tensor([math.nan])), _gap(torch.zeros(1), torch.zeros(2))
    (inf, inf)
    """
    if one.shape != other.shape:
        return math.inf
    x, y = one.double(), other.double()
    gap = (x - y).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    return float(gap.masked_fill((x == y) | (x.isnan() & y.isnan()), 0.0).max())


@functools.cache
def _ragged() -> Federation:
    return ragged_task()


def _allows(method: Algorithm, training: Training) -> bool:
    """True if the method can be trained so, by what it requires."""
    required = {path.partition("."): allowed for path, allowed in method.required().items()}
    return all(meets(getattr(training, name), x) for (section, _, name), x in required.items() if section == "training")


def _by_client(models: Models, order: Tensor) -> Tensor:
    """Parameters [P], or rows [C, P] in the order of the clients' first numbers."""
    return models.params if models.clients is None else models.params[torch.argsort(order[models.clients])]


def _with_another(method: Algorithm, name: str) -> Algorithm:
    """The method with another value for one hyper-parameter: the first that its bounds allow."""
    value, annotation = getattr(method, name), type(method).model_fields[name].annotation
    options: list[Any] = []
    if isinstance(value, bool):
        options = [not value]
    elif get_origin(annotation) is Literal:
        options = [choice for choice in get_args(annotation) if choice != value]
    elif isinstance(value, int):
        options = [value + 1, value - 1]
    elif isinstance(value, float):
        options = [value / 2, value + 0.25, value - 0.25]
    elif value is None:
        options = [2, 0.5]
    for option in options:
        try:
            other = type(method).model_validate({**method.model_dump(), name: option})
        except ValidationError:
            continue
        if getattr(other, name) != value:
            return other
    raise AssertionError(f"no other value for {name} found; give two methods in `pairs['{name}']`")
