"""The command line: names that people's scripts rely on, errors, and what reaches the layers below."""

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from pfl_ops import registry, runs, tuning
from pfl_ops.cli import app, browse, show
from pfl_ops.cli.options import EXECUTION, EXPERIMENT
from pfl_ops.cli.output import out
from pfl_ops.cli.reproduce import page
from pfl_ops.cli.run import look_closer, ui_hint
from pfl_ops.cli.terminal_tables import drawn, print_rows
from pfl_ops.config.experiment import FLAGS, Experiment
from pfl_ops.config.fields import settings
from pfl_ops.data.datasets import here
from pfl_ops.display import tables
from pfl_ops.display.progress import RunProgress
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop.estimate import Estimate
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs import repeat as jobs_repeat
from pfl_ops.jobs.repeat import Repeated
from pfl_ops.results import Result as FinishedRun
from pfl_ops.system import cores, machine
from pfl_ops.tracking.home import WorkFolder
from pfl_ops.tuning.commands.planning import benchmark_plans
from pfl_ops.tuning.session.begin import PreparedStudy, data_folders, stored
from pfl_ops.tuning.studies.limits import StudyLimits
from pfl_ops.tuning.studies.settings import check_top
from pfl_ops.tuning.studies.study_storage import StudyStorage

ROOT = Path(__file__).parents[1]


def cli(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


# -- names ------------------------------------------------------------------------------------------------------------

SHARED = {
    *("--dataset", "--train-size", "--partition", "--clients", "--alpha", "--model", "--rounds", "--local-epochs"),
    *("--local-steps", "--batch-size", "--optimiser", "--lr", "--participation", "--precision", "--seed"),
    *(
        "--repetitions",
        "--device",
        "--way",
        "--chunk",
        "--workers",
        "--threads",
        "--state",
        "--checkpoint-every",
        "--diverged",
        "--kernels",
    ),
    *("--config", "--preset", "--set", "--dry-run", "--data-dir", "--tracking-uri", "--plugin"),
    *("--resume", "--no-resume"),
}
OPTIONS = {
    "run": SHARED | {"--concurrency", "--address"},
    "tune": SHARED
    | {"--trials", "--metric", "--scheduler", "--search-space", "--cpus-per-trial", "--gpus-per-trial", "--concurrency"}
    | {"--hours", "--samples", "--terminate", "--seeds-per-trial", "--from-study"}
    | {"--environments", "--vary", "--held-out", "--aggregate"}
    | {"--confirm", "--confirm-top", "--name", "--storage", "--address"},
    "compare": {"--filter", "--tag", "--trials", "--metric", "--target", "--at", "--html", "--csv", "--latex"}
    | {"--test", "--notes", "--tracking-uri"},
    "reproduce": {"--scale", "--only", "--all", "--list", "--repetitions", "--concurrency", "--cpus-per-cell"}
    | {"--gpus-per-cell", "--address", "--reports", "--dry-run", "--data-dir", "--tracking-uri"}
    | {"--device", "--way", "--threads", "--until-decided", "--results", "--hours", "--suite", "--set", "--choose"}
    | {"--choices"},
    "compile": set(),
    "bench": {"--model", "--dataset", "--batch", "--optimiser", "--clients", "--steps", "--precision", "--chunk"}
    | {"--workers", "--device", "--threads", "--measure", "--evaluate-models", "--evaluate-images", "--repeats"}
    | {
        "--seconds",
        "--quick",
        "--rounds",
        "--other-load",
        "--json",
        "--track",
        "--no-track",
        "--data-dir",
        "--tracking-uri",
        "--plugin",
    },
    "tabulate": SHARED - {"--tracking-uri", "--resume", "--no-resume"}
    | {
        "--grid",
        "--out",
        "--configurations",
        "--seeds",
        "--environments",
        "--vary",
        "--metric",
        "--search-space",
        "--concurrency",
    },
    "replay": {
        "--sampler",
        "--seeds-per-trial",
        "--studies",
        "--scheduler",
        "--random-start",
        "--grace",
        "--trials",
        "--confirm",
        "--confirm-top",
        "--seed",
        "--csv",
    },
    "partition": {"--dataset", "--train-size", "--clients", "--alpha", "--seed", "--set", "--plot", "--save"}
    | {"--data-dir", "--plugin"},
    "partition import": {"--save", "--dataset", "--plot", "--data-dir"},
    "list": {"--plugin"},
    "show": {"--plugin"},
    "ui": {"--port", "--study", "--storage", "--tracking-uri"},
}


def test_commands_and_flags_are_frozen() -> None:
    """People's scripts use these; taking one away is a breaking change and belongs into the changelog."""
    import typer

    command = typer.main.get_command(app)
    found = {
        name: {o for p in sub.params for o in (*p.opts, *p.secondary_opts) if o.startswith("-")} - {"--help", "-h"}
        for name, sub in command.commands.items()  # type: ignore[attr-defined]
    }
    assert found == OPTIONS


@pytest.mark.parametrize("flag", [f for f in EXPERIMENT], ids=lambda f: f.name)
def test_a_flag_sets_the_field_whose_default_it_shows(flag: Any) -> None:
    known = {setting.path: setting for setting in settings(Experiment)}
    assert FLAGS.get(flag.name.replace("-", "_"), flag.path) == flag.path, "the same word means another path in Python"
    assert flag.path in known
    if not flag.default.startswith("the "):  # "the data set's": depends on another field
        default = known[flag.path].default
        assert flag.default == ("none" if default is None else str(default))


@pytest.mark.parametrize(
    "flag",
    [flag for flag in (*EXPERIMENT, *EXECUTION) if flag.names is not None],
    ids=lambda f: f.name,
)
def test_help_names_the_values_of_a_flag_with_few(flag: Any) -> None:
    values = list(flag.names())
    if len(values) <= 4:
        assert all(value in f"{flag.metavar} {flag.help} {flag.default}" for value in values)


def test_execution_flags_show_their_defaults() -> None:
    assert {flag.path for flag in EXECUTION} == set(Execution.model_fields)
    for flag in EXECUTION:
        default = Execution.model_fields[flag.path].default
        assert default is None or flag.default == str(default)


# -- speed ------------------------------------------------------------------------------------------------------------


def fresh(*words: str, **env: str) -> tuple[str, set[str]]:
    """(stdout, modules loaded) of a command line in a process of its own. What is loaded is what takes the time."""
    code = (
        "import atexit, sys; from pfl_ops.cli import main; "
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout, set(done.stderr.split())


HEAVY = {"torch", "mlflow", "ray", "optuna", "pandas", "matplotlib", "sklearn"}


def test_help_says_what_seeds_do_in_each_command() -> None:
    """In `tune` repetitions are test runs, and 0 is allowed; in `tabulate` they are refused, and so not shown."""
    texts = {name: " ".join(cli(name, "--help").stdout.replace("│", " ").split()) for name in ("tune", "tabulate")}
    assert "Test runs of the choice, with seeds seed, seed + 1, ...; 0: test data stay" in texts["tune"]
    assert "Seed of the trials, and of the first test run." in texts["tune"]
    assert "--repetitions" not in texts["tabulate"]


@pytest.mark.parametrize("words", [("--help",), ("tune", "--help"), ("bench", "--help")], ids=" ".join)
def test_help_answers_at_once(words: tuple[str, ...]) -> None:
    stdout, modules = fresh(*words)
    assert "Usage: pfl-ops" in stdout
    assert not modules & (HEAVY | {"numpy"})


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("pfl-ops run fedp", {"fedprox", "fedprox_ft", "fedpg", "fedper", "fedproto", "fedpac"}),
        ("pfl-ops run fliu --dataset c", {"cifar10", "cifar100"}),
        ("pfl-ops run fliu --partition l", {"ls", "lsqs"}),
        ("pfl-ops tune fliu --model cnn", {"cnn", "cnn6", "cnn_cifar", "cnn_tiny"}),
        ("pfl-ops run fliu --way v", {"vmap"}),
        ("pfl-ops tune ditto,fedpr", {"ditto,fedprox", "ditto,fedprox_ft", "ditto,fedproto"}),
        ("pfl-ops list a", {"algorithms"}),
    ],
)
def test_completion_answers_at_once(line: str, offers: set[str]) -> None:
    words = line.split()
    stdout, modules = fresh(_PFL_OPS_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert set(stdout.split()) == offers
    assert not modules & HEAVY and "pfl-ops:" not in modules, "Typer's exit is no error"


# -- errors -----------------------------------------------------------------------------------------------------------

ERRORS = {
    "run flui --dataset mnist": "no algorithm named 'flui'. Did you mean 'fliu'? (pfl-ops list algorithms)",
    "run fliu --dataset mnst": "no dataset named 'mnst'. Did you mean 'mnist'? (pfl-ops list datasets)",
    "run": "an experiment needs algorithm.name",
    "run ditto,fedavg --dataset mnist": "run takes one method; several are compared by: pfl-ops tune ditto,fedavg",
    "run --set algorithm=fliu": "algorithm is a section, set its fields (as algorithm.name); got 'fliu'",
    "run fliu --rounds 0": "training.rounds (T) must be an integer in [1, 1,000,000], got '0'",
    "run fliu --set training.round=3": "no setting named 'training.round'. Did you mean 'training.rounds'?",
    "run fliu --set rounds": "--set needs path=value, as in training.lr=0.1; got 'rounds'",
    "run fliu --rounds 3 --set training.rounds=4": "--rounds and --set training.rounds=4 say the same thing twice",
    "run fliu --threads 100000": "--threads must be an integer in [1, ",
    "run fliu --workers 100000": "--workers must be an integer in [1, ",
    "tune fliu --threads 100000": "--threads must be an integer in [1, ",
    "bench --threads 100000": "--threads must be an integer in [1, ",
    "run fliu --chunk 0": "--chunk must be an integer in [1, 1,000,000] or none, got '0'",
    "run fliu --datset mnist": "no such option: --datset. Did you mean '--dataset'? (pfl-ops run --help)",
    "run fliu --plugin nowhere.py": "nowhere.py does not exist",
    "run fliu --config nowhere.yaml": "can't read nowhere.yaml",
    "tune fliu --metric test/L1/acc": "'test/L1/acc': tuning never sees the test data; did you mean 'val/L1/acc'?",
    "tune fliu --scheduler ahsa": "scheduler must be asha, paired or none, got 'ahsa'",
    "tune fliu --address nonsense": "--address is auto or HOST:PORT, with a port from 1 to 65535, got 'nonsense'",
    "tune fliu --address 127.0.0.1:1": "no Ray cluster answers at '127.0.0.1:1'",
    "tune fliu,fedavg --cpus-per-trial 100000": "this machine does not have 100000 CPUs for one trial",
    "reproduce fliu/table1 --address host:0": "--address is auto or HOST:PORT",
    "partition lsq": "no partition named 'lsq'. Did you mean 'lsqs'? (pfl-ops list partitions)",
    "partition path --set partition.classes_per_client=12": "<= 10 (digits has 10 classes), got 12",
    "show flui": "Did you mean 'fliu'?",
    "list algorithm": "Did you mean 'algorithms'?",
    "bench --model cnn,mpl": "no model named 'mpl'. Did you mean 'mlp'? (pfl-ops list models)",
    "bench --batch 10,x": "--batch (B) must be a list, each an integer in [1, 1,000,000], got 'x'",
    "reproduce fliu/tabel1": "no suite named 'fliu/tabel1'. Did you mean 'fliu/table1'? (pfl-ops reproduce --list)",
    "reproduce fliu/table1 --scale tiny": "--scale must be one of smoke, small, medium, full, got 'tiny'",
    "reproduce fliu/table1 --only path/flui": "no label in 'path/flui' named 'flui'. Did you mean 'fliu'?",
    "reproduce fliu/table1 --only path": "'path' has 1 part, and cells have 2: environment/method",
    "reproduce fliu/table1 --cpus-per-cell none": "--cpus-per-cell must be a number above 0, got 'none'",
    "run fliu --device gpu": "--device must be one of auto, cpu, cuda, got 'gpu'; did you mean 'cuda'?",
    "run fliu --way stacked": "--way must be one of auto, loop, vmap, got 'stacked'; did you mean 'vmap'?",
    "run fliu --model MLR": "no model named 'MLR'. Did you mean 'linear'?",
    "run fliu --model dnn": "no model named 'dnn'. Did you mean 'mlp'?",
    "run fedbn": "no algorithm named 'fedbn'. Known: apfl, ",
    "run fliu --partition non-iid": "no partition named 'non-iid'. Label skew: path, pat, shards, sorted_shards, ls, ",
    "run fliu --set gamma.kind=fixed": "no setting named 'gamma'. Did you mean 'algorithm.gamma.kind'? (pfl-ops show",
    "run fedprox --set mu=0.1": "no setting named 'mu'. Did you mean 'algorithm.mu'? (pfl-ops show fedprox)",
    "run fliu --set training.momentm=1": "Did you mean 'training.momentum'? (pfl-ops list settings)",
    "run fliu --model mlp --set model.hiden=9": "Did you mean 'model.hidden'? (pfl-ops show mlp)",
    "run fliu --set training.gamma=1": "no setting named 'training.gamma'. Did you mean 'algorithm.gamma'?",
    "run fliu --global_rounds 3": "no such option: --global_rounds. Did you mean '--rounds'? (pfl-ops run --help)",
    "run fliu --seeds 3": "no such option: --seeds. Did you mean '--repetitions'?",
    "run fliu --data mnist": "no such option: --data. Did you mean '--dataset'?",
    "run fliu --gpu": "no such option: --gpu. Did you mean '--device cuda'?",
    "run ditto --lam 0.5": "no such option: --lam. A setting without a flag: --set PATH=VALUE (pfl-ops run --help)",
    "run fedavg --weight_decay 0.1": "A setting without a flag: --set training.weight_decay=VALUE (pfl-ops run --help)",
    "run --algorithm fliu": "no such option: --algorithm. The method has no flag: pfl-ops run fedavg (pfl-ops run",
    "tune fliu --sampler random": "no such option: --sampler. Trials are proposed by Optuna's TPE, and no other",
    "run fliu -lr 0.1": "no such option: -lr. Did you mean '--lr'? (pfl-ops run --help)",
    "run -algo FedAvg -data MNIST": "no such option: -algo. The method has no flag: pfl-ops run fedavg (pfl-ops run",
    "run fedavg -data MNIST": "no such option: -data. Did you mean '--dataset'?",
    "run fedavg -m CNN": "no such option: -m. Did you mean '--model'?",
    "run fedavg -did 0": "no such option: -did. A flag has two dashes (pfl-ops run --help)",
    "run fedavg data.name=mnist seed=1": "(data.name=mnist seed=1). A setting: --set data.name=mnist (pfl-ops run",
    "compare --sort acc": "no such option: --sort (pfl-ops compare --help)",
    "reproduce fliu/table1 --resume": "no such option: --resume. The same command goes on by itself (pfl-ops reproduce",
    "list methods": "no kind of thing named 'methods'. Did you mean 'algorithms'?",
    "shw fliu": "no such command 'shw'. Did you mean 'show'? (pfl-ops --help)",
}


@pytest.fixture(autouse=True)
def work_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test has a work folder of its own, whatever the environment names."""
    monkeypatch.setenv("PFL_OPS_HOME", str(tmp_path / "mlruns"))


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize("line", ERRORS)
def test_errors_are_one_line_on_stderr(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = cli(*line.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("pfl-ops: ") and ERRORS[line] in result.stderr
    assert result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_output_without_greek_letters_shows_question_marks() -> None:
    """In Latin-1 (`LC_ALL=en_US`) a run of hours ended with an internal error where its table has '≥'."""
    result = CliRunner(charset="latin-1").invoke(app, ["show", "fliu"])
    assert result.exit_code == 0 and result.stderr == ""
    assert "?_k ? train(?_k)" in result.stdout


def test_debug_shows_the_traceback_wherever_it_stands() -> None:
    for words in (["--debug", "run", "flui"], ["run", "flui", "--debug"]):
        result = cli(*words)
        assert result.exit_code == 2 and result.stdout == ""
        assert "Traceback" in result.stderr and "registry.py" in result.stderr
        assert result.stderr.endswith(
            "pfl-ops: no algorithm named 'flui'. Did you mean 'fliu'? (pfl-ops list algorithms)\n"
        )


def test_version_and_no_command() -> None:
    assert cli("--version").stdout.startswith("pfl-ops ")
    assert "Usage: pfl-ops" in cli().stdout


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "pfl_ops", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == cli("--version").stdout


# -- list, show, partition --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["algorithms", "datasets", "models", "partitions", "losses", "presets"])
def test_list_says_what_each_is(kind: str) -> None:
    of_tests = {name for table in registry._tables for name in {*table.names()} - {*table.builtin}}  # of other files
    lines = [line for line in cli("list", kind).stdout.splitlines() if line.split()[0] not in of_tests]
    assert lines and all(len(line.split()) > 2 for line in lines)


def test_show_preset_has_the_rules_of_methods() -> None:
    lines = cli("show", "paper").stdout.splitlines()
    assert "  training.optimiser=adam" in lines
    assert "  algorithm.name=fedavg: training.optimiser=sgd" in lines  # what `run fedavg --preset paper` has
    assert "  algorithm.name=pfedme: algorithm.inner_steps=5, algorithm.inner_lr=0.01" in cli("show", "pfllib").stdout


def test_list_tells_two_methods_of_one_file_apart() -> None:
    lines = [line for line in cli("list", "algorithms").stdout.splitlines() if "fedpg " in line]
    assert len(lines) == 2 and "FedPG whose step is as long as it helps every client." in lines[1]


def test_list_spaces_names_their_files() -> None:
    assert "fliu.yaml" in cli("list", "spaces").stdout


def test_list_settings_has_every_setting_of_every_method() -> None:
    text = cli("list", "settings").stdout
    listed = {line.split()[0] for line in text.splitlines() if line[:1].isalpha()}
    kinds = ({}, {"participation.kind": "dirichlet"}, {"participation.kind": "stragglers"})
    own = ("algorithm.", "model.hidden", "partition.alpha", "partition.min_size", "partition.stratified")
    paths = {path for kind in kinds for path in Experiment.of("fedavg", participation=0.5, **kind).paths()}
    assert {path for path in paths if not path.startswith(own)} <= listed
    size = next(line for line in text.splitlines() if line.startswith("data.train_size"))
    assert "12000" in size and "an integer in [1, 1,000,000,000] or none" in size


def test_show_a_method() -> None:
    text = cli("show", "fliu").stdout
    for part in ("Source:", "θ_k ← γ_k θ_k + (1 − γ_k) Θ", "State: central [P]"):  # its docstring, brackets and all
        assert part in text
    gamma, tuned = (line for line in text.splitlines() if line.startswith("algorithm.gamma.value"))
    assert gamma.split()[1:3] == ["γ", "0.5"] and "a number in [0, 1]" in gamma and "fixed" in gamma
    assert "search space" in text and "algorithm.gamma.kind is fixed" in tuned


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("cnn", "1,663,370"),
        ("zipf", "partition.s "),
        ("digits", "8 x 8 x 1"),
        ("paper", "training.rounds=100"),
        ("cross_entropy", "log softmax"),
        ("momentum", "SGD's momentum"),
        ("participation", "stragglers"),
    ],
)
def test_show_other_things(name: str, part: str) -> None:
    assert part in cli("show", name).stdout


def test_partition_counts_draws_and_saves(tmp_path: Path) -> None:
    plot, saved = tmp_path / "out.png", tmp_path / "kept"
    result = cli("partition", "lsqs", "--clients", "4", "--seed", "1", "--plot", str(plot), "--save", str(saved))
    assert result.exit_code == 0, result.output
    rows = [line.replace("·", "0").split() for line in result.stdout.splitlines()[2:7]]
    counts = [[int(cell) for cell in row[1:]] for row in rows]
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "all"]
    assert all(row[0] == sum(row[1:]) for row in counts)
    assert [sum(column) for column in zip(*counts[:4], strict=True)] == counts[4]
    assert plot.read_bytes().startswith(b"\x89PNG")

    again = cli("partition", f"file:{saved}")
    assert again.exit_code == 0, again.output
    digest = [line for line in result.stdout.splitlines() if line.startswith("partition ")]
    assert digest == [line for line in again.stdout.splitlines() if line.startswith("partition ")]


def test_partition_names_the_seed_that_draws_it() -> None:
    result = cli("partition", "iid", "--clients", "2", "--seed", "1", "--set", "partition.seed=5")
    assert result.stdout.startswith("iid on digits, 2 clients, seed 5\n")


def test_partition_import_makes_what_its_last_line_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Index lists become a partition, PFLlib's folder a data set; the flags that are printed work as they stand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PFL_OPS_CACHE", str(tmp_path / "cache"))
    Path("lists.json").write_text('{"train": {"b": [0, 1, 2], "a": [7, 8]}, "test": {"a": [0], "b": [1]}}')
    for part, n in (("train", 8), ("test", 4)):
        for client in range(2):
            Path("pfllib", part).mkdir(parents=True, exist_ok=True)
            x = np.random.default_rng(client).integers(0, 2, (n, 1, 4, 4)).astype(np.float32) * 2 - 1
            np.savez_compressed(f"pfllib/{part}/{client}.npz", data={"x": x, "y": np.arange(n) % 2})
    for source, where, kind, counts in (
        ("lists.json", ("kept", "--dataset", "digits"), [], {"0": 2, "1": 3}),
        ("pfllib", ("made.npz", "--plot", "made.png"), ["natural"], {"0": 8, "1": 8}),
    ):
        result = cli("partition", "import", source, "--save", *where)
        assert result.exit_code == 0, result.output
        *_, saved = result.stdout.splitlines()
        assert saved.startswith("saved     ")
        flags = saved.partition("(")[2].rstrip(")").split()
        if "--partition" in flags:
            at = flags.index("--partition")
            kind = [flags[at + 1]]
            del flags[at : at + 2]
        again = cli("partition", *kind, *flags)
        assert again.exit_code == 0, again.output
        rows = [line.split() for line in again.stdout.splitlines()]
        assert {row[0]: int(row[1]) for row in rows if row and row[0] in counts} == counts
    assert Path("made.png").read_bytes().startswith(b"\x89PNG")


# -- run --------------------------------------------------------------------------------------------------------------


CLIENTS = pd.DataFrame({"client": [0, 1, 2], "stage": "L1", "n_held": [3, 20, 30], "local": [0.25, 0.5, 0.75]})


@dataclass
class Fake:
    """Stands for `runs`: records what it was asked for, and gives two rounds."""

    asked: list[Experiment] = field(default_factory=list)
    given: list[dict[str, Any]] = field(default_factory=list)
    interrupt: bool = False
    terminate: bool = False
    diverges: int | None = None  # the seed that does
    hints: tuple[str, ...] = ()

    def run(self, experiment: Experiment, **given: Any) -> Any:
        self.asked.append(experiment)
        self.given.append(given)
        if given["on_estimate"]:
            given["on_estimate"](self.estimate(experiment))
        for round_ in (1, 2):
            metrics = {"test/L1/local/mean": 0.5 + round_ / 10, "cost/samples_per_second": 1234.0}
            metrics |= {"test/L1/global/mean": 0.25} if round_ == 1 else {}
            given["on_record"](SimpleNamespace(round=round_, metrics=metrics, time=2**43))
            if self.interrupt:
                raise KeyboardInterrupt
            if self.diverges == experiment.seed:
                raise runs.Diverged(2, 0.4, 12)
            if self.terminate:
                assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL  # else this process would end here
                signal.raise_signal(signal.SIGTERM)
        final = {"final/test/L1/local/mean": 0.7, "final/test/L1/global/mean": 0.25, "final/test/L1/acc": 0.95}
        shown = {"hash": f"{experiment.seed:064x}"[::-1], "page": "/#/experiments/7/runs?viewStateShareKey=methods"}
        return SimpleNamespace(
            final=final, metrics=final, params={}, experiment=experiment, clients=CLIENTS, n_clients=3, complaints=[],
            origin="", **shown,
        )  # fmt: skip

    def estimate(self, experiment: Experiment, **given: Any) -> Estimate:
        cost = {"samples": 120_000, "sent_bytes": 3 * 2**20}
        return Estimate(180, 80, 20, experiment.training.rounds, 500, 3, self.hints, **cost)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    made = Fake()
    monkeypatch.setattr(runs, "run", made.run)
    monkeypatch.setattr(runs, "estimate", made.estimate)
    monkeypatch.setattr(machine, "process_age", lambda: 5.0)
    monkeypatch.setattr("pfl_ops.federation.loop.estimate.TRACKING_SECONDS", 0.0)
    return made  # type: ignore[return-value]


def test_run_shows_rounds_and_results(fake: Fake) -> None:
    result = cli(
        "run", "fedavg", "--rounds", "2", "--device", "cpu", "--repetitions", "2", "--seed", "5", "--no-resume"
    )
    assert result.exit_code == 0, result.output
    assert [e.seed for e in fake.asked] == [5, 6]
    assert fake.given[0]["execution"] == Execution(device="cpu") and fake.given[0]["resume"] is False
    assert result.stderr.count("about 3 min 5 s") == 1
    assert "each of 2 repetitions: about 3 min 5 s (start-up 5.0 s, 2 rounds of 1 min 20 s" in result.stderr
    # the global view is not measured in round 2: its last value stands, and says of which round it is
    line = "fedavg-digits-lsqs seed 5  round 2/2  Acc(L) 70.0 %  Acc(G) 25.0 % (round 1)  1,234 samples/s\n"
    assert line in result.stderr
    [row] = [line for line in result.stdout.splitlines() if line.startswith("L1 ")]
    assert re.split("  +", row.strip())[1:] == ["70.0 ± 0.0 %", "25.0 ± 0.0 %", "95.0 ± 0.0 %", "–", "50.0 ± 0.0 %"]
    assert "run 500000000000  (seed 5)" in result.stdout
    assert "pfl-ops ui, then http://127.0.0.1:5000/experiment/digits-lsqs" in result.stdout


def test_a_file_equals_the_flags(fake: Fake, tmp_path: Path) -> None:
    words = ["run", "fliu", "--partition", "path", "--clients", "7", "--local-steps", "3", "--train-size", "none"]
    words += ["--lr", "1e-3", "--set", "algorithm.gamma.kind=fixed", "--set", "algorithm.gamma.value=0.25"]
    assert cli(*words).exit_code == 0
    [flags] = fake.asked
    assert (flags.get("partition.clients"), flags.training.local_steps, flags.training.lr) == (7, 3, 0.001)
    assert flags.data.train_size is None and flags.get("algorithm.gamma.value") == 0.25
    (tmp_path / "e.yaml").write_text(flags.to_yaml())
    assert cli("run", "--config", str(tmp_path / "e.yaml")).exit_code == 0
    assert fake.asked[1] == flags
    assert cli("run", "--config", str(tmp_path / "e.yaml"), "--clients", "8").exit_code == 0
    assert fake.asked[2] == flags.override({"partition.clients": 8})


def test_dry_run_only_estimates(fake: Fake) -> None:
    result = cli("run", "fedavg", "--dry-run")
    assert (result.exit_code, fake.asked) == (0, [])
    assert result.stdout.startswith("about 3 min 5 s (start-up 5.0 s, 20 rounds") and result.stdout.endswith(
        "memory 500 MiB, disk 3 MiB\n"
    )


def test_dry_run_of_several_repetitions_says_that_the_estimate_is_of_one_and_how_many_are_finished(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "fedavg", "--repetitions", "3", "--dry-run"]
    assert cli(*words).stdout.startswith("each of 3 repetitions: about 3 min 5 s (")
    WorkFolder.open()
    finished = {0, 2}
    monkeypatch.setattr(runs, "is_finished", lambda experiment, **_: experiment.seed in finished)
    assert cli(*words).stdout.startswith("2 of 3 repetitions are finished; each other one: about 3 min 5 s (")
    assert cli(*words, "--no-resume").stdout.startswith("each of 3 repetitions: about")
    finished = {0, 1, 2}
    assert cli(*words).stdout == "3 of 3 repetitions are finished\n"
    assert cli("run", "fedavg", "--dry-run").stdout.startswith("finished before: ")
    assert fake.asked == []


def test_a_dry_run_refuses_an_address_that_is_none(fake: Fake) -> None:
    for words in ([], ["--dry-run"]):
        result = cli("run", "fedavg", "--address", "nonsense", *words)
        assert result.exit_code == 2 and "--address is auto or HOST:PORT, " in result.stderr and not result.stdout


@pytest.mark.parametrize("words", [["--dry-run"], []])
def test_the_estimate_is_followed_by_its_hints(words: list[str], fake: Fake) -> None:
    fake.hints = ("precision bfloat16 would be faster",)
    result = cli("run", "fedavg", "--rounds", "2", *words)
    told = (result.stdout if words else result.stderr).splitlines()
    assert told[0].startswith("about 3 min 5 s") and told[1] == fake.hints[0]


@pytest.mark.parametrize(
    ("words", "at_once"),
    [
        ([], True),  # nine minutes of repetitions are worth Ray's start
        (["--concurrency", "1"], False),
        (["--concurrency", "3"], True),
        (["--address", "auto"], True),
        (["--no-resume"], False),
    ],
)
def test_repetitions_run_side_by_side_where_that_saves_time(
    words: list[str], at_once: bool, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []

    def repeat(experiment: Experiment, **settings: Any) -> Repeated:
        given.append(settings)
        settings["on_record"](6, SimpleNamespace(round=1, metrics={"test/L1/local/mean": 0.5}, time=2**43))
        return Repeated([], {6: "diverged at round 2"})

    monkeypatch.setattr(jobs_repeat, "repeat", repeat)
    monkeypatch.setattr(cores, "usable", lambda: 2)
    result = cli("run", "fedavg", "--rounds", "2", "--seed", "5", "--repetitions", "3", *words)
    assert bool(given) == at_once and bool(fake.asked) != at_once
    if at_once:
        assert result.exit_code == 3 and result.stderr.endswith("seed 6: diverged at round 2\n")
        assert "fedavg-digits-lsqs seed 6  round 1/2  Acc(L) 50.0 %" in result.stderr
        asked = dict(zip(words[::2], words[1::2], strict=True))
        assert (given[0]["concurrency"], given[0]["address"]) == (
            int(asked["--concurrency"]) if "--concurrency" in asked else None,
            asked.get("--address"),
        )


@pytest.mark.parametrize(("flag", "value"), [("--address", "auto"), ("--concurrency", "2")])
def test_no_resume_with_repetitions_at_once_is_refused(fake: Fake, flag: str, value: str) -> None:
    result = cli("run", "fedavg", flag, value, "--no-resume")
    assert result.exit_code == 2 and f"here; leave it or {flag} out" in result.stderr


def test_a_seed_that_diverges_leaves_no_mean(fake: Fake) -> None:
    fake.diverges = 6
    result = cli("run", "fedavg", "--rounds", "2", "--repetitions", "3", "--seed", "5", "--concurrency", "1")
    assert result.exit_code == 3 and [e.seed for e in fake.asked] == [5, 6, 7]
    assert result.stderr.endswith("seed 6: diverged at round 2, client 12, lr 0.4\n")
    assert "last round" not in result.stdout and "run 500000000000  (seed 5)\nrun 7000" in result.stdout


def test_repetitions_on_two_data_sets_are_refused(fake: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file was replaced after the first seed: the table was a mean over both data sets."""
    file, usual = tmp_path / "mine.npz", runs.run

    def write(value: float) -> None:
        x, y = np.full((60, 2), value, np.float32), np.arange(60) % 2
        np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)

    def run(experiment: Experiment, **settings: Any) -> FinishedRun:
        result = usual(experiment, **settings)
        write(2.0)
        return result

    write(1.0)
    monkeypatch.setattr(runs, "run", run)
    result = cli("run", "fedavg", "--dataset", str(file), "--rounds", "2", "--repetitions", "2", "--concurrency", "1")
    assert (result.exit_code, result.stdout, len(fake.asked)) == (2, "", 1)
    assert result.stderr.splitlines()[-1].startswith("pfl-ops: seed 1: the data, the partition or the weights were rep")


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(fake: Fake) -> None:
    fake.interrupt = True
    result = cli("run", "fedavg", "--rounds", "2")
    assert result.exit_code == 130 and result.stdout == ""
    assert "the same command goes on from the last checkpoint" in result.stderr


@pytest.mark.parametrize("interrupt", [signal.default_int_handler, signal.SIG_IGN])
def test_sigterm_ends_like_ctrl_c_with_143(fake: Fake, interrupt: Any) -> None:
    """Also where a shell has let SIGINT be ignored; the handler is put back at the end."""
    fake.terminate = True
    before, usual = signal.getsignal(signal.SIGTERM), signal.signal(signal.SIGINT, interrupt)
    try:
        result = cli("run", "fedavg", "--rounds", "2")
    finally:
        signal.signal(signal.SIGINT, usual)
    assert result.exit_code == 143 and result.stdout == ""
    assert "the same command goes on from the last checkpoint" in result.stderr
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("sent", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
@pytest.mark.parametrize("place", ["Ends()", "kept = weakref.ref(Empty(), send)"])
def test_a_signal_that_python_would_only_print_is_repeated(place: str, sent: str, code: int) -> None:
    """It comes where no exception gets out; a moment later the command does something else."""
    program = f"""if 1:
        import signal, sys, time, weakref
        from pfl_ops.cli.termination import sigterm_as_ctrl_c
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in a shell's background

        def send(_):
            signal.raise_signal(signal.{sent})

        class Ends:
            def __del__(self):
                send(self)

        class Empty:
            pass

        @sigterm_as_ctrl_c
        def main():
            try:
                {place}
                time.sleep(60)
            except KeyboardInterrupt:
                sys.exit(130)

        main()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (code, "")


def test_a_plug_in_is_known_by_name(fake: Fake, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from pfl_ops import register\n\n"
        "@register('cli_halves')\n"
        "def halves(labels, n_clients, *, rng):\n"
        "    'Alternating samples.'\n"
        "    return [list(range(k, len(labels), n_clients)) for k in range(n_clients)]\n"
    )
    assert cli("run", "fedavg", "--partition", "cli_halves", "--plugin", str(file)).exit_code == 0
    assert fake.asked[0].partition.kind == "cli_halves"
    listed = cli("list", "partitions", "--plugin", str(file)).stdout.splitlines()
    assert ["cli_halves", "Alternating", "samples."] in [line.split() for line in listed]


# -- tune -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch, fake: Fake) -> list[dict[str, Any]]:
    """Stands for `tuning.tune`: records its arguments, gives a finished study of two trials."""
    calls: list[dict[str, Any]] = []

    def tune(experiment: Experiment | None, **given: Any) -> Any:
        calls.append({"experiment": experiment, **given})
        table = pd.DataFrame(
            {"trial": [0, 1], "state": ["complete", "failed"], "rounds": [2, 0], "val/L1/acc": [1.5, None]}
            | {"seconds": [3.0, 1.0], "training.lr": [0.01, 0.5], "error": ["", "it broke"]}
        )
        return SimpleNamespace(
            name="fliu-digits-lsqs-0123abcd",
            objective=SimpleNamespace(metrics=("val/L1/acc",), modes=("max",)),
            table=table,
            pareto=None,
            diverged={},
            trial=0,
            values={"val/L1/acc": 1.5},
            scores={"val/L1/acc": 1.5},
            best={"training.lr": 0.01, "algorithm.gamma.kind": "adaptive"},
            finals=[SimpleNamespace(final={"final/test/L1/local/mean": 0.7}, clients=CLIENTS, n_clients=3, params={})],
            openings_note="the test data were opened 1 time for this study",
            page=None,
            confirmation=None,
            pictures=None,
            noise="",
            front_note="",
            tie_note="",
            test_data_notes=(
                "5 of 40 test samples have the values of a training sample: they are no test of new data",
            ),
            ends_note="at an end of the range, beyond which nothing was tried: training.lr=0.01 in 0.01 to 0.5 (log)",
            environments=None,
            environment_notes=(),
            baseline_note="",
            ended="search ended by --hours 2: 2.1 h are spent",
        )

    monkeypatch.setattr(tuning, "tune", tune)
    monkeypatch.setattr("pfl_ops.cli.study_page.write_page", lambda study, folder: folder / "index.html")
    return calls


def test_tune_holds_what_flags_say_and_reports(study: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pfl_ops.jobs.resources.nodes", lambda: [{"CPU": 7.0, "GPU": 0.0}])
    held = ("--lr", "0.01", "--set", "algorithm.gamma.kind=adaptive")
    rest = (
        "--trials",
        "4",
        "--repetitions",
        "3",
        "--metric",
        "val/L1/acc",
        "--cpus-per-trial",
        "2",
        "--name",
        "mine",
        "--concurrency",
        "3",
    )
    result = cli("tune", "fliu", *held, *rest)
    assert result.exit_code == 0, result.output
    [call] = study
    assert call["experiment"].training.lr == 0.01
    assert set(call["hold"]) >= {"training.lr", "algorithm.gamma.kind"}
    assert (call["trials"], call["metric"], call["cpus_per_trial"], call["name"]) == (4, ["val/L1/acc"], 2, "mine")
    assert call["final_repetitions"] == 3
    assert "4 trials, 3 at once, about 4 min 11 s if none is stopped early; each about 3 min 0 s" in result.stderr
    assert "then the best 2 again with up to 3 new seeds (--confirm), at most " in result.stderr
    assert "at the end 3 test runs of the choice (about 3 min 1 s)\n" in result.stderr, "three at once"
    assert (call["confirm"], call["confirm_top"]) == (None, None)
    monkeypatch.setattr("pfl_ops.jobs.resources.nodes", lambda: [{"CPU": 2.0, "GPU": 0.0}])
    assert "4 trials, 1 at once, about 12 min" in cli("tune", "fliu", *rest, "--dry-run").stdout
    for part in (
        "*000",
        "it broke",
        "best: trial 000, Acc(L)+Acc(G) 150.0 %",
        "validation scores of L1",
        "training.lr=0.01",
        "beyond which nothing was tried: training.lr=0.01 in 0.01 to 0.5 (log)",
        "opened 1 time for",
        "pfl-ops ui",
    ):
        assert part in result.stdout


def test_tune_says_which_values_of_a_file_it_searches(
    study: list[dict[str, Any]], bench: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Flags hold a setting, files do not: a study's own best.yaml names all settings."""
    file = tmp_path / "mine.yaml"
    file.write_text("training: {lr: 0.2, rounds: 2}\nalgorithm: {name: fliu}\n")
    line = f"searched, not held at the value given: training.lr (--config {file}); a flag or --set holds a setting"
    for methods in ("fliu", "fliu,ditto"):
        result = cli("tune", methods, "--config", str(file))
        assert result.exit_code == 0 and line in result.stderr.splitlines(), result.output
        assert "searched, not" not in cli("tune", methods, "--config", str(file), "--lr", "0.2").stderr


@pytest.mark.skipif(not here("mnist"), reason="MNIST, the data set of the preset, is not here")
def test_tune_says_which_values_of_a_preset_it_searches(study: list[dict[str, Any]]) -> None:
    told = cli("tune", "fliu", "--preset", "paper").stderr
    assert "training.lr, " in told and "(--preset paper); a flag or --set holds a setting" in told


def test_tune_says_which_settings_have_no_effect(
    study: list[dict[str, Any]], bench: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Of those that a flag or --set gives, and of those that a search space varies."""
    weighting = ("--set", "participation.weighting=uniform")
    line = "without effect: participation.weighting{} (the method does not read it)"
    assert line.format("") in cli("tune", "fedas", *weighting, "--dry-run").stdout.splitlines()
    assert line.format(" on fedas") in cli("tune", "fedas,fedavg", *weighting).stderr.splitlines()
    assert "without effect" not in cli("tune", "fedavg", *weighting).stderr
    space = tmp_path / "space.yaml"
    space.write_text("algorithm.gamma: {float: [0.0, 1.0]}\n")
    off = cli("tune", "fedpg", "--search-space", str(space), "--set", "algorithm.drift=false").stderr.splitlines()
    assert "without effect: algorithm.gamma (read with drift only)" in off


def test_run_says_which_settings_have_no_effect() -> None:
    """FedAS weighs by what clients have learnt: --set participation.weighting was accepted in silence."""
    words = (
        "--model",
        "mlp",
        "--clients",
        "3",
        "--rounds",
        "1",
        "--set",
        "participation.weighting=uniform",
        "--dry-run",
    )
    told = cli("run", "fedas", *words)
    assert told.exit_code == 0, told.output
    assert told.stderr.splitlines()[0] == "without effect: participation.weighting (the method does not read it)"
    assert "without effect" not in cli("run", "fedavg", *words).stderr
    in_steps = ("--local-steps", "2", "--local-epochs", "none")  # none is how one says so
    assert "without effect" not in cli("run", "fedavg", *words, *in_steps).stderr


def test_settings_of_a_file_without_effect_are_named(study: list[dict[str, Any]], tmp_path: Path) -> None:
    """Those of --config were accepted in silence. Defaults are not named: a study's best.yaml has all settings."""
    file = tmp_path / "mine.yaml"
    file.write_text("{model: {name: mlp}, participation: {weighting: uniform}, data: {test_share: 0.25}}\n")
    line = "without effect: participation.weighting (the method does not read it)"
    for command in ("run", "tune"):
        told = cli(command, "fedas", "--clients", "3", "--rounds", "1", "--dry-run", "--config", str(file))
        assert told.exit_code == 0 and line in (told.stderr + told.stdout).splitlines()


def test_tune_passes_the_numbers_to_confirm_on(study: list[dict[str, Any]]) -> None:
    result = cli("tune", "fliu", "--trials", "4", "--confirm", "2", "--confirm-top", "9")
    assert result.exit_code == 0 and "then the best 4 again with up to 2 new seeds (--confirm)" in result.stderr
    assert (study[0]["confirm"], study[0]["confirm_top"]) == (2, 9)
    for without in (("--confirm", "0"), ("--trials", "1")):
        assert "again with" not in cli("tune", "fliu", *without).stderr


def test_tune_passes_seeds_per_trial_on_and_counts_their_runs(study: list[dict[str, Any]]) -> None:
    """Four trials of two runs of 3 min, one after another: 24 min. Of 500,000 samples at 240,000 a trial: 3 trials."""
    words = ("--trials", "4", "--seeds-per-trial", "2", "--concurrency", "1")
    result = cli("tune", "fliu", *words)
    assert result.exit_code == 0 and study[0]["seeds_per_trial"] == 2, result.output
    told = " ".join(result.stderr.split())
    assert "4 trials, 1 at once, about 24 min" in told
    assert "a trial is the mean over 2 seeds, none is stopped early; each about 3 min 0 s" in told
    dry = cli("tune", "fliu", *words, "--samples", "5e5", "--dry-run").stdout
    assert "500,000 samples (3 fit), 1 at once" in dry
    both = cli("tune", "fliu,ditto", *words, "--dry-run").stdout
    assert "a trial is the mean over 2 seeds, none is stopped early" in both and "if none" not in both


@pytest.mark.parametrize("method", ["fliu", "fliu,ditto"])
@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("--seeds-per-trial 0", "--seeds-per-trial must be in [1, 1,000], got 0"),
        ("--seeds-per-trial 1001", "--seeds-per-trial must be in [1, 1,000], got 1001"),
        ("--seeds-per-trial 2 --scheduler asha", "asha compares trials while they run"),
    ],
)
def test_seeds_per_trial_that_cannot_be_are_one_line(
    words: str, line: str, method: str, study: list[dict[str, Any]]
) -> None:
    result = cli("tune", method, *words.split())
    assert result.exit_code == 2 and line in result.stderr and not study and result.stdout == ""
    assert "Traceback" not in result.stderr


def test_tune_passes_environments_on_and_counts_their_runs(study: list[dict[str, Any]]) -> None:
    """Two trials of 2 environments and 2 seeds and as many runs of FedAvg, each of 3 min: 12 runs, 36 min."""
    words = ("--trials", "2", "--seeds-per-trial", "2", "--concurrency", "1", "--repetitions", "3")
    result = cli("tune", "fliu", *words, "--environments", "path, ls", "--held-out", "iid", "--aggregate", "worst")
    assert result.exit_code == 0, result.output
    given = {name: study[0][name] for name in ("environments", "vary", "held_out", "aggregate")}
    assert given == {"environments": ("path", "ls"), "vary": None, "held_out": ("iid",), "aggregate": "worst"}
    told = " ".join(result.stderr.split())
    assert "2 trials, 1 at once, about 36 min" in told
    assert "a trial is the worst score over 2 environments (path, ls) of the mean over 2 seeds, each score" in told
    assert (
        "before it 4 runs of FedAvg, at the end 18 tests (about 54 min 13 s): the choice and FedAvg; held out: iid"
        in told
    )
    result = cli("tune", "fliu", "--trials", "1", "--vary", "participation.share=0.5,1")
    assert result.exit_code == 0 and study[1]["vary"] == {"participation.share": [0.5, 1]}, result.output


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("fliu --environments pathh", "no environment named 'pathh'. Did you mean 'path'? (pfl-ops list partitions)"),
        ("fliu --environments path --held-out path", "held-out environment 'path' is tuned on, too (as 'path')"),
        ("fliu --held-out qs", "--held-out needs environments to tune on: --environments path,ls or --vary PATH=V1,V2"),
        (
            "fliu --vary partition.alpha",
            "--vary needs PATH=V1,V2, as in partition.alpha=0.1,0.5; got 'partition.alpha'",
        ),
        ("fliu --vary training.lr=1,2", "environment 'training.lr=1': it gives data.PATH, partition.PATH or"),
        (
            "fliu,ditto --environments path",
            "environments are for one method, got fliu, ditto; tune one after the other",
        ),
    ],
)
def test_environments_that_cannot_be_are_one_line(words: str, line: str, study: list[dict[str, Any]]) -> None:
    result = cli("tune", *words.split())
    assert result.exit_code == 2 and result.stderr.startswith(f"pfl-ops: {line}"), result.stderr
    assert result.stderr.count("\n") == 1 and not study and result.stdout == ""


def test_tune_passes_budgets_on_and_says_which_one_ended(study: list[dict[str, Any]]) -> None:
    """Half an hour holds 10 trials of 3 min one after another; 500,000 samples 5 trials of 120,000."""
    result = cli("tune", "fliu", "--hours", "0.5", "--terminate", "15", "--concurrency", "1")
    assert result.exit_code == 0, result.output
    assert (study[0]["hours"], study[0]["samples"], study[0]["terminate"]) == (0.5, None, 15)
    assert "0.5 h, an end after 15 trials without a better value (10 fit), 1 at once" in " ".join(result.stderr.split())
    assert "search ended by --hours 2: 2.1 h are spent" in result.stdout
    dry = cli("tune", "fliu", "--samples", "5e5", "--trials", "9", "--concurrency", "1", "--dry-run").stdout
    assert "9 trials, 500,000 samples (5 fit), 1 at once" in dry and "120,000 samples, 3.0 MiB sent" in dry
    assert len(study) == 1


@pytest.mark.parametrize("shares", ["0.1,1.0", "1.0,0.1"])
def test_tune_estimates_environments_by_their_mean(shares: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of 1,000 and of 10,000 samples, in either order: 5,500 a run in the mean, 11,000 a trial. FedAvg's two
    have 11,000 of 77,000, and 6 trials are what is left. Divisions of the same data cost alike, and one of them is
    measured."""
    measured = []

    def estimate(experiment: Experiment, **_: Any) -> Estimate:
        measured.append(share := experiment.participation.share)
        seconds = 100 * share
        return Estimate(seconds, seconds, 0, 1, 500 * share, 3, samples=round(10_000 * share), sent_bytes=share * 2**20)

    monkeypatch.setattr(runs, "estimate", estimate)
    words = ("--trials", "9", "--samples", "77000", "--concurrency", "1", "--dry-run")
    told = cli("tune", "fliu", "--vary", f"participation.share={shares}", *words).stdout
    assert "9 trials, 77,000 samples (6 fit), 1 at once" in told, told
    assert "a run in the mean about 55 s" in told and "memory 500 MiB" in told
    assert "5,500 samples, 0.6 MiB sent" in told and len(measured) == 2
    told = cli("tune", "fliu", "--environments", "path,ls,lsqs", *words).stdout
    assert "; each about 1 min 40 s" in told and len(measured) == 3, told


@pytest.mark.parametrize("method", ["fliu", "fliu,ditto"])
@pytest.mark.parametrize(
    "words", ["--hours 0", "--hours -1", "--hours nan", "--hours inf", "--samples 0", "--samples nan", "--samples 2.5"]
)
def test_budgets_that_cannot_be_are_one_line(words: str, method: str, study: list[dict[str, Any]]) -> None:
    result = cli("tune", method, *words.split())
    assert result.exit_code == 2 and result.stderr.startswith(f"pfl-ops: {words.split()[0]} must be ")
    assert result.stderr.count("\n") == 1 and not study and result.stdout == ""


def test_how_many_trials_run_at_once_may_be_left_to_a_measurement(study: list[dict[str, Any]]) -> None:
    result = cli("tune", "fliu", "--trials", "4", "--cpus-per-trial", "auto", "--gpus-per-trial", "0")
    assert result.exit_code == 0, result.output
    assert (study[0]["cpus_per_trial"], study[0]["gpus_per_trial"]) == ("auto", 0)
    assert "4 trials, each about 3 min 0 s" in result.stderr


def test_a_share_that_is_none_is_refused_before_anything_is_measured(
    study: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two GPUs were reserved, and one of them stood idle."""
    result = cli("tune", "fliu", "--gpus-per-trial", "foo")
    line = "--gpus-per-trial must be a share of a GPU, at most 1 (0.25, 0.5), or auto, got"
    assert result.exit_code == 2 and result.stderr == f"pfl-ops: {line} 'foo'\n" and not study
    monkeypatch.setattr("pfl_ops.jobs.resources.nodes", lambda: [{"CPU": 8.0, "GPU": 4.0}])
    result = cli("tune", "fliu", "--gpus-per-trial", "2")
    assert result.exit_code == 2 and result.stderr == f"pfl-ops: {line} '2': a trial computes on one GPU\n"
    result = cli("reproduce", "fliu/table1", "--gpus-per-cell", "2", "--dry-run")
    assert result.exit_code == 2 and "got '2.0': a cell computes on one GPU" in result.stderr


def test_a_stopped_study_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, fake: Fake) -> None:
    def tune(experiment: Experiment | None, **given: Any) -> Any:
        raise tuning.StudyInterrupted(
            "stopped with 3 of 12 trials done; go on with: pfl-ops tune fliu --name x --resume"
        )

    monkeypatch.setattr(tuning, "tune", tune)
    result = cli("tune", "fliu")
    assert result.exit_code == 130 and result.stdout == ""
    assert "pfl-ops tune fliu --name x --resume" in result.stderr


def begin(name: str, *methods: str, trials: int = 0) -> list[StudyStorage]:
    """Begin a study, or a benchmark, in the work folder: nothing is run, some trials are recorded."""
    experiments = [Experiment.of(method) for method in methods]
    means: Any = SimpleNamespace(data_dir=data_folders(None, None), studies=stored(None, WorkFolder.open()))
    if len(methods) == 1:
        plans = [PreparedStudy(experiments[0], tuning.Settings.of(experiments[0]), name, 1)]
    else:
        studies, folders, limits = means.studies, means.data_dir, StudyLimits()
        plans = benchmark_plans(experiments, studies=studies, data_dir=folders, limits=limits, name=name)
    found = [plan.begin(means, False) for plan in plans]
    for kept in found:
        for _ in range(trials):
            kept.study.tell(kept.study.ask(), 1.0)
    return found


@pytest.mark.parametrize("dry", [[], ["--dry-run"]], ids=["run", "dry run"])
@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("fliu --name begun", "study 'begun' exists, 1 of 20 trials have a result; go on with --resume, or choose"),
        ("fliu --name begun --resume --lr 0.1", "study 'begun' was begun with other settings (now "),
        ("fliu --name begum --resume --lr 0.1", "no study named 'begum'. Did you mean 'begun'?"),
        ("fliu --name begum --resume", "no study named 'begum'. Did you mean 'begun'?"),
        ("fliu --seed 4294967295", "seed must be <= 4294966293 with 3 seeds of the confirmation"),
        ("fliu --clients 4 --environments ls --held-out path", "environment 'path': partition 'path' needs clients "),
        ("fliu,ditto --name begun", "a study is named 'begun' already; choose another --name"),
        ("fliu,ditto --name boht --resume", "no benchmark named 'boht'. Did you mean 'both'?"),
        ("fliu,ditto --name both", "study 'both.fliu' exists, 1 of 20 trials have a result; go on with"),
        ("fliu,ditto --seed 4294967295", "seed must be <= 4294966293 with 3 seeds of the confirmation"),
    ],
)
def test_a_dry_run_refuses_what_the_command_refuses(
    words: str, line: str, dry: list[str], study: list[dict[str, Any]], bench: list[dict[str, Any]]
) -> None:
    begin("begun", "fliu", trials=1)
    begin("both", "fliu", "ditto", trials=1)
    result = cli("tune", *words.split(), *dry)
    assert result.exit_code == 2 and result.stderr.startswith(f"pfl-ops: {line}"), result.output
    assert result.stderr.count("\n") == 1 and not study and not bench and result.stdout == ""


@pytest.mark.parametrize("more", ["", "--name x --resume", "--storage new.log", "--storage sqlite:///new.db"])
@pytest.mark.parametrize("methods", ["fliu", "fliu,ditto"])
def test_a_dry_run_leaves_nothing_behind(methods: str, more: str, bench: list[dict[str, Any]], tmp_path: Path) -> None:
    result = cli("tune", methods, *more.split(), "--dry-run")
    assert result.exit_code == (2 if "resume" in more else 0) and not [*tmp_path.iterdir()], result.output


@pytest.mark.parametrize("methods", [["fliu"], ["fliu", "ditto"]])
def test_confirm_top_of_a_study_that_confirms_nothing_is_refused(
    methods: list[str], study: list[dict[str, Any]], bench: list[dict[str, Any]]
) -> None:
    """Begun with --confirm 0: the number of configurations was taken, recorded, and never used."""
    for kept in begin("mine", *methods, trials=1):
        kept.remember(confirm=0)
    words = ("tune", ",".join(methods), "--name", "mine", "--resume", "--confirm-top", "4")
    result = cli(*words)
    line = "--confirm-top has no effect: nothing is confirmed (--confirm 0); leave it out"
    assert result.exit_code == 2 and result.stderr == f"pfl-ops: {line}\n" and not study and not bench
    assert cli(*words, "--confirm", "2", "--dry-run").exit_code == 0


def test_confirm_top_of_a_pareto_front_is_refused(study: list[dict[str, Any]], tmp_path: Path) -> None:
    """In Python there was no check; on the command line, only where --metric was typed again."""
    settings = tuning.Settings.of(Experiment.of("fliu"), metric=["val/L1/acc", "val/G/acc"])
    with pytest.raises(PflOpsError, match="a choice by several objectives is not confirmed; leave it out"):
        check_top(StudyLimits(confirm_top=3), settings)
    check_top(StudyLimits(confirm_top=3), tuning.Settings.of(Experiment.of("fliu")))


def test_resuming_by_name_alone_takes_the_recorded_settings(
    study: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    begin("mine", "fliu")
    result = cli("tune", "fliu", "--name", "mine", "--resume")
    assert result.exit_code == 0, result.output
    assert study[0]["experiment"] is None and study[0]["resume"]
    assert "study 'mine' tunes fliu, not ditto" in cli("tune", "ditto", "--name", "mine", "--resume").stderr


def test_resuming_by_name_tests_as_often_as_the_last_call(
    study: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    begin("mine", "fliu")[0].remember(finals=5)
    for more, finals in ((), 5), (("--repetitions", "3"), 3), (("--repetitions", "0"), 0):
        result = cli("tune", "fliu", "--name", "mine", "--resume", *more)
        assert result.exit_code == 0, result.output
        assert study[-1]["final_repetitions"] == finals and study[-1]["experiment"] is None


@pytest.mark.parametrize("words", [("--repetitions", "0"), ("--set", "repetitions=0")])
def test_no_repetitions_leave_the_test_data_closed(words: tuple[str, ...], study: list[dict[str, Any]]) -> None:
    result = cli("tune", "fliu", *words)
    assert result.exit_code == 0, result.output
    assert study[0]["final_repetitions"] == 0 and study[0]["experiment"].repetitions == 1


# -- tune with several methods ----------------------------------------------------------------------------------------


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, fake: Fake, tmp_path: Path) -> list[dict[str, Any]]:
    """Stands for `benchmark`: records its arguments, gives a leaderboard of two; reports land in `tmp_path`."""
    calls: list[dict[str, Any]] = []
    nan = float("nan")

    def benchmark(experiments: Any, **given: Any) -> Any:
        calls.append({"experiments": experiments, **given})
        rows = {
            **{"rank": pd.array([1, None], "Int64"), "method": ["fliu", "ditto"], "scored_at": "L1"},
            **{"metric": "val/L1/acc", "status": ["complete", "failed"], "validation": [1.5, nan]},
            **{"test": [1.4, nan], "std": [0.1, nan], "n": [2, 0], "difference": nan, "low": nan, "high": nan},
            **{"test_runs": [2, 0], "common": 0, "n_local": [2, 0], "n_global": [2, 0], "n_worst": [2, 0]},
            **{"p": nan, "p_holm": nan, "p_test": "t", "local": [0.9, nan], "global": [0.5, nan], "worst": [0.2, nan]},
            **{
                "trials": 4,
                "complete": [4, 0],
                "pruned": 0,
                "diverged": 0,
                "failed": [0, 4],
                "tuned": 2,
                "restricted": ["optimiser sgd", ""],
                "search_samples": 1_200_000,
                "search_seconds": 61.0,
            },
            **{"test_seconds": [3.0, nan], "sent_bytes": [2e6, nan], "openings": [1, 0], "trial": [3, None]},
            **{"settings": ["lr=0.01", ""], "error": ["", "it broke"], "study": "", "run_id": None},
        }
        traces = pd.DataFrame({"method": "fliu", "trial": range(4), "state": "complete", "best": 1.5})
        tests = pd.DataFrame({"method": "fliu", "seed": [0, 1], "score": [1.3, 1.5], "local": 0.9, "global": 0.5})
        one = SimpleNamespace(
            experiment=Experiment.of("fliu"), pictures=None, table=pd.DataFrame({"training.lr": [0.01]})
        )
        made = SimpleNamespace(
            **{"name": "mine", "studies": {"fliu": one}},
            **{"table": pd.DataFrame(rows), "traces": traces, "tests": tests, "notes": ("Mark this.",)},
            page="/#/experiments/8/runs",
            costs=pd.DataFrame(
                {"cost": "samples", "budget": 1_000_000.0, "method": ["fliu", "ditto"], "trials": [3, 4]}
                | {"validation": [1.45, nan], "rank": pd.array([1, None], "Int64")}
            ),
        )
        given["report"](made)
        return made

    monkeypatch.setattr("pfl_ops.tuning.commands.benchmark.benchmark", benchmark)
    monkeypatch.chdir(tmp_path)
    return calls


def test_several_methods_are_tuned_under_one_budget(bench: list[dict[str, Any]], tmp_path: Path) -> None:
    result = cli("tune", "fliu,", "ditto", "--trials", "4", "--repetitions", "2", "--lr", "0.1", "--name", "mine")
    assert result.exit_code == 0, result.output
    [call] = bench
    assert [one.algorithm.name for one in call["experiments"]] == ["fliu", "ditto"]
    assert {one.training.lr for one in call["experiments"]} == {0.1} and set(call["hold"]) == {"training.lr"}
    assert (call["trials"], call["final_repetitions"], call["name"], call["metric"]) == (4, 2, "mine", None)
    assert "2 methods, each with 4 trials and 2 test runs, " in result.stderr and "\n  ditto  each " in result.stderr
    for part in (
        "140.0 ± 10.0 %",
        "4 (4 failed)",
        "trial 003  lr=0.01",
        "failed: it broke",
        "Mark this.",
        "1.9 MiB",
        "1,200,000",
        "search at equal cost, validation",
        "equal samples: 1,000,000",
        "1.  145.0 %  (3 trials)",
    ):
        assert part in result.stdout
    assert "1  fliu *  L1" in result.stdout and "ditto *" not in result.stdout
    assert "report: reports/mine/index.html" in result.stdout
    page = (tmp_path / "reports" / "mine" / "index.html").read_text(encoding="utf-8")
    assert "140.0" in page and "it broke" in page and "<svg" in page
    assert "restricted: optimiser sgd" in page and "1,200,000" in page
    assert "Search at equal cost" in page and "1.  145.0 %  (3 trials)" in page


def test_a_study_is_told_though_its_report_cannot_be_written(
    study: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(study: Any, folder: Path) -> Path:
        raise OSError(28, "No space left on device")

    assert cli("tune", "fliu").stdout.splitlines()[-1] == "report: reports/fliu-digits-lsqs-0123abcd/index.html"
    monkeypatch.setattr("pfl_ops.cli.study_page.write_page", full)
    result = cli("tune", "fliu")
    assert result.exit_code == 2 and "best: trial 000" in result.stdout
    assert result.stderr.splitlines()[-1].startswith("pfl-ops: no report of fliu-digits-lsqs-0123abcd: ")
    assert "No space left" in result.stderr.splitlines()[-1]


def test_a_benchmark_is_told_though_its_report_cannot_be_written(bench: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file where the folder should be")
    result = cli("tune", "fliu,ditto", "--name", "mine")
    assert result.exit_code == 2 and "140.0 ± 10.0 %" in result.stdout
    assert result.stderr.splitlines()[-1].startswith("pfl-ops: no report of mine: can't write the report to reports")


def test_a_dry_run_of_several_methods_estimates_each(bench: list[dict[str, Any]]) -> None:
    result = cli("tune", "fliu, ditto", "--dry-run")
    assert result.exit_code == 0 and not bench
    assert "2 methods, each with 20 trials and 1 test run" in result.stdout and "fliu   each about" in result.stdout
    assert "all methods vary: optimiser sgd or adam, lr 0.001 to 0.5 (log) where optimiser is sgd; " in result.stdout
    assert "requires" not in result.stdout
    result = cli("tune", "fliu, scaffold", "--dry-run")
    assert "\n  scaffold  requires optimiser sgd\n" in result.stdout


def test_estimate_names_local_work_that_trials_vary(study: list[dict[str, Any]], bench: list[dict[str, Any]]) -> None:
    """The estimate is of a run with one epoch; it was shown as that of any trial. 12 runs confirm."""
    times = "times the samples and the training time\n"
    told = cli("tune", "fliu", "--dry-run").stdout
    assert f"\nestimated with local_epochs 1; trials have 1 to 3, and so up to 3 {times}" in told
    assert "estimated with" not in cli("tune", "fliu", "--dry-run", "--local-epochs", "1").stdout
    told = cli("tune", "fliu,ditto", "--dry-run", "--concurrency", "1").stdout
    assert f"\nestimated with local_epochs 1; trials have 1 to 5, and so up to 5 {times}" in told
    assert "then the best 2 of each again with up to 3 new seeds (--confirm), at most 36 min 8 s more\n" in told
    assert "at the end" not in cli("tune", "fliu", "--dry-run", "--repetitions", "0").stdout
    told = cli("tune", "fliu,drdm", "--dry-run").stdout
    assert f"\nestimated with local_steps 5; trials have 1 to 40, and so up to 8 {times}" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fliu,ditto,fliu", "fliu is named twice"),
        ("fliu,dito", "dito: no algorithm named 'dito'. Did you mean 'ditto'? (pfl-ops list algorithms)"),
        ("fliu,ditto --set algorithm.gamma.kind=fixed", "--set algorithm.gamma.kind: only fliu has it, not ditto; "),
        ("fliu,ditto --clients no", "fliu, ditto: partition.clients (K) must be"),
        ("fliu,fedsgd --optimiser adam", "fedsgd: fedsgd needs training.optimiser=sgd"),
        ("fliu,ditto --metric val/L1/acc --metric val/G/acc", "a benchmark ranks methods by one metric"),
    ],
)
def test_mistakes_of_several_methods_are_one_clear_line(words: str, message: str, bench: list[dict[str, Any]]) -> None:
    result = cli("tune", *words.split())
    assert result.exit_code == 2 and result.stdout == "" and not bench
    assert result.stderr.startswith(f"pfl-ops: {message}") and result.stderr.count("\n") == 1


def test_an_estimate_of_what_goes_on_is_of_what_is_left(bench: list[dict[str, Any]]) -> None:
    """15 of 20 trials are done: 5 runs of 180.7 s, and start-up twice, are 15 min 14 s. It said about an hour."""
    begin("mine", "fliu", trials=15)
    words = ("--name", "mine", "--resume", "--dry-run", "--concurrency", "1")
    told = cli("tune", "fliu", *words).stdout
    assert told.startswith("20 trials; 15 trials are done, 5 are left, 1 at once, about 15 min 14 s if none is"), told
    assert "then the best 2 again with up to 3 new seeds (--confirm), at most 18 min 14 s" in told
    told = cli("tune", "fliu", *words, "--trials", "15").stdout
    assert told.startswith("15 trials; 15 trials are done, the search is over; each about 3 min 0 s"), told
    assert "1 of 1 test run left" in told
    told = cli("tune", "fliu", *words, "--samples", "120001").stdout
    assert told.startswith("20 trials, 120,001 samples; 15 trials are done (0 samples), 5 are left (2 fit), 1"), told
    begin("both", "fliu", "ditto", trials=15)
    told = cli("tune", "fliu,ditto", "--name", "both", "--resume", "--dry-run", "--concurrency", "1").stdout
    assert "2 methods, each with 20 trials and 1 test run, 2 test runs left, 1 at once: about 36 min 1" in told, told
    assert "  ditto  15 trials are done, 5 are left; each about 3 min 0 s" in told


def test_a_benchmark_goes_on_by_its_name_alone(bench: list[dict[str, Any]]) -> None:
    begin("mine", "fliu", "ditto")
    for methods in ([], ["ditto,fliu"]):
        result = cli("tune", *methods, "--name", "mine", "--repetitions", "3", "--resume")
        assert result.exit_code == 0, result.output
        call = bench.pop()
        assert call["experiments"] is None and call["resume"] and call["final_repetitions"] == 3
    assert (
        "'mine' compares fliu, ditto, not apfl, fliu" in cli("tune", "apfl,fliu", "--name", "mine", "--resume").stderr
    )


# -- what is printed --------------------------------------------------------------------------------------------------


def test_the_line_tells_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("pfl_ops.display.progress.time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: 50.0))
    line = RunProgress("x", 10, "val")
    line(SimpleNamespace(round=3, metrics={"val/G/local/mean": 0.5}, time=49_000))  # from a checkpoint: no rate
    line(SimpleNamespace(round=4, metrics={}, time=51_000))
    now[0] += 30
    line(SimpleNamespace(round=6, metrics={"val/G/global/mean": 0.4}, time=81_000))
    assert line.text(6) == "round 6/10  Acc(L) 50.0 % (round 3)  Acc(G) 40.0 %  1 min 0 s left"


def test_the_untrained_network_s_score_is_no_round_s() -> None:
    line = RunProgress("x", 10, "val")
    line(SimpleNamespace(round=0, metrics={"val/G/local/mean": 0.1, "val/G/global/mean": 0.1}, time=0))
    assert line.text(0) == "round 0/10  Acc(L) 10.0 %  Acc(G) 10.0 %"
    line(SimpleNamespace(round=1, metrics={"val/G/local/mean": 0.5}, time=0))
    assert line.text(1) == "round 1/10  Acc(L) 50.0 %  Acc(G) –"


def test_progress_line_has_the_scores_of_the_own_stage() -> None:
    """`fedavg_ft` is judged at L2, as in its result; L1 is the global model before fine-tuning."""
    line = RunProgress.of(Experiment.of("fedavg_ft", dataset="digits", model="linear", rounds=10))
    line(SimpleNamespace(round=0, metrics={"test/L1/local/mean": 0.1, "test/L1/global/mean": 0.1}, time=0))
    assert line.text(0) == "round 0/10  Acc(L) 10.0 %  Acc(G) 10.0 %"
    scores = {"test/L1/local/mean": 0.5, "test/L1/global/mean": 0.5, "test/L2/local/mean": 0.9}
    line(SimpleNamespace(round=1, metrics=scores, time=0))
    assert line.text(1) == "round 1/10  Acc(L) 90.0 %  Acc(G) –"


def test_where_to_look_closer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert ui_hint(None) == "pfl-ops ui"
    assert ui_hint("sqlite:///x.db", "/#/a").endswith(" --tracking-uri sqlite:///x.db, then http://127.0.0.1:5000/#/a")
    assert ui_hint("http://there:80/", "/#/a") == "http://there:80/#/a"
    assert look_closer(None, "/#/a", "study", "my study") == (
        "look closer: pfl-ops ui, then http://127.0.0.1:5000/study/my%20study"
    )
    assert look_closer(None, None, "study", "s") == "look closer: pfl-ops ui"
    long = look_closer("http://there:80/", "/#/a", "experiment", "e")
    assert long.splitlines() == ["look closer (experiment e):", "http://there:80/#/a"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://elsewhere")
    assert ui_hint(None, "/#/a") == "https://elsewhere/#/a"


@pytest.mark.parametrize("width", [160, 80, 60, 40])
def test_tables_cut_no_number_or_name_on_a_narrow_terminal(width: int) -> None:
    """A leaderboard at 60 columns had "dit…", "143…" and "−11…"; at 80 its heads were "valida…" and "differ…"."""
    file = io.StringIO()
    console = Console(width=width, file=file)
    heads = ("", "method", "validation", "test", "difference to the first %", "p", "Acc(L)+Acc(G)", "worst client")
    row = ("1", "ditto", "143.5 %", "150.9 ± 6.8 % (2 of 3)", "−11.92", "0.82", "151.0 ± 3.5 %", "63.5 %")
    print_rows(console, tables.TableRows("benchmark b", heads, (row,), frozenset({0, 1})))
    printed = file.getvalue()
    lines = [line.rstrip() for line in printed.splitlines()]
    assert "…" not in printed and console.width == width
    assert all(text in printed for text in ("ditto", "143.5 %", "150.9", "± 6.8 %", "(2 of 3)", "−11.92", "63.5 %"))
    assert max(map(len, lines)) <= max(width, 78) and len(lines) == (3 if width == 160 else 7)


def test_a_partition_cuts_no_head_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten classes at 60 columns had the heads "cli…" and "sam…"."""
    file = io.StringIO()
    monkeypatch.setattr(browse, "out", lambda: Console(width=60, file=file))
    browse.show_counts(np.full((2, 10), 1234), "lsqs", None)
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    assert lines[1].split() == ["client", "samples", *(f"c{i}" for i in range(10))]
    assert lines[2].split() == ["0", "12340", *["1234"] * 10] and "…" not in file.getvalue()


def test_settings_have_lines_of_their_own_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLIU's at 60 columns were a table whose words had three columns."""
    file = io.StringIO()
    monkeypatch.setattr(show, "out", lambda: Console(width=60, file=file))
    show.show_name("fliu")
    text = file.getvalue()
    assert (
        "algorithm.gamma.value  γ  0.5  (of kind fixed)\n    share of its own, for every client\n    a number in"
        in text
    )
    monkeypatch.setattr(show, "out", lambda: Console(width=140, file=file))
    show.show_name("fliu")
    assert re.search(r"algorithm.gamma.value +γ +0.5 +a number in \[0, 1\] +fixed +share of its own", file.getvalue())


def test_the_worst_client_comes_with_its_samples_and_stages_with_their_meaning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The worst of all has 3 samples; of those with 10 and more it is another client. No L2, no word on it."""
    final = {"local/mean": 0.5, "global/mean": 0.25, "acc": 0.75, "local/worst": 0.25}
    kept = {f"final/test/L1/{key}": value for key, value in final.items()}
    one = SimpleNamespace(final=kept, clients=CLIENTS, n_clients=3, params={})
    out().print(drawn(tables.scores([one], "test")))
    _, head, row = capsys.readouterr().out.rstrip().splitlines()
    assert re.split("  +", head.strip()) == [
        "stage",
        "Acc(L)",
        "Acc(G)",
        "Acc(L)+Acc(G)",
        "worst client",
        "worst, n ≥ 10",
    ]
    assert re.split("  +", row.strip()) == ["L1", "50.0 %", "25.0 %", "75.0 %", "25.0 % (n 3)", "50.0 %"]
    assert tables.score_notes([one], "test") == [
        "L1: what clients hold after the update",
        "n: a client's test samples; 1 of 3 clients have fewer than 10",
    ]


def test_worst_accuracy_of_several_clients_says_how_many() -> None:
    """Two of three clients have 25 %: one has 3 test samples, the other one more."""
    tied = CLIENTS.assign(local=[0.25, 0.25, 0.5] * (len(CLIENTS) // 3), n_held=[12, 3, 40] * (len(CLIENTS) // 3))
    final = {f"final/test/L1/{key}": 0.25 for key in ("local/mean", "global/mean", "acc", "local/worst")}
    one = SimpleNamespace(final=final, clients=tied[tied["stage"] == "L1"], n_clients=3)
    assert tables.scores([one], "test").rows[0][4] == "25.0 % (2 clients, n 3 to 12)"
    one.clients["n_held"] = 7
    assert tables.scores([one], "test").rows[0][4] == "25.0 % (2 clients, n 7)"


def test_notes_on_small_test_sets_count_every_seed() -> None:
    """Seeds have partitions of their own: 1 and 2 of 3 clients have fewer than 10 test samples."""
    small = CLIENTS.assign(n_held=CLIENTS["n_held"].where(CLIENTS["client"] != CLIENTS["client"].max(), 9))
    final = {"final/test/G/acc": 0.5}
    found = [SimpleNamespace(final=final, clients=clients, n_clients=3, params={}) for clients in (CLIENTS, small)]
    assert tables.score_notes(found, "test") == [
        "G: the one model of all",
        "n: a client's test samples; 1 to 2 of 3 clients have fewer than 10",
    ]
    empty = CLIENTS.assign(n_held=CLIENTS["n_held"].where(CLIENTS["n_held"] > 3, 0))
    final = {"final/test/G/acc": 0.5}
    found = [SimpleNamespace(final=final, clients=clients, n_clients=3, params={}) for clients in (CLIENTS, empty)]
    assert tables.score_notes(found, "test")[1:] == [
        "n: a client's test samples; 1 of 3 clients have fewer than 10, "
        "0 to 1 of them none; clients with none count in Acc(G) alone",
    ]


def test_notes_say_which_clients_the_scores_are_of() -> None:
    """Three of 300 clients are scored; one of these has taken part (absent=last), so that L2 is of one client."""
    final = {"final/test/L1/local/clients": 3.0, "final/test/L2/local/clients": 1.0}
    one = SimpleNamespace(final=final, clients=CLIENTS, n_clients=300, params={})
    assert tables.score_notes([one], "test")[1:] == [
        "3 of 300 clients are scored, drawn once for each run (evaluation.clients)",
        "L2: of the 1 of 3 clients that have taken part in a round",
        "n: a client's test samples; 1 of 3 scored clients have fewer than 10",
    ]


def test_notes_say_the_first_round_of_each_target() -> None:
    """Acc(L) of L1 has 70 % in rounds 3 and 4, at G in one of two repetitions; L2 has no score in the curves."""
    scored = {f"test/{stage}/local/mean": 0.75 for stage in ("L1", "G")} | {"final/test/L2/local/mean": 0.8}
    reached = [{"L1": 3.0, "G": 9.0}, {"L1": 4.0}]
    found = [
        SimpleNamespace(
            final={f"reached/test/{stage}/local/mean_70": value for stage, value in rounds.items()},
            metrics=scored,
            params={"evaluation.targets": "(0.7, 0.975)"},
        )
        for rounds in reached
    ]
    assert tables.target_notes(found, "test") == [
        "first scored round with 70 %: L1 Acc(L) 3.5 ± 0.7; G Acc(L) 9.0 (1 of 2)",
        "first scored round with 97.5 %: never",
    ]
    assert tables.target_notes(found[:1], "test")[0] == "first scored round with 70 %: L1 Acc(L) 3; G Acc(L) 9"
    half = SimpleNamespace(
        final={"reached/test/L2/local/mean_70": 2.0},
        metrics={"test/L2/local/mean": 0.8, "test/L2/local/worst": 0.2},
        params={"evaluation.targets": "(0.7,)", "participation.share": "0.5"},
    )
    told = "first scored round with 70 %: L2 (of the round's cohort) Acc(L) 2, worst client never"
    assert tables.target_notes([half], "test") == [told]
    half.params["participation.share"] = "1.0"  # of a method that draws its own cohorts, with replacement
    half.metrics |= {"test/L2/local/clients": 6.0, "test/G/local/clients": 12.0}
    assert tables.target_notes([half], "test") == [told]
    half.metrics["test/L2/global/mean"] = 0.7
    half.params["evaluation.global_every"] = "5"
    assert tables.target_notes([half], "test") == [told.replace("2,", "2, Acc(G) never,")]
    half.final["reached/test/L2/global/mean_70"] = 5.0
    more = " (Acc(G) of clients' own models is scored every 5 rounds)"
    assert tables.target_notes([half], "test") == [told.replace("2,", "2, Acc(G) 5,") + more]
    half.params["evaluation.every"] = "2"  # then it is scored in rounds 10, 20, ...
    assert tables.target_notes([half], "test")[0].endswith(more.replace("every 5", "every 10"))
    found[0].params["evaluation.targets"] = "()"
    assert not tables.target_notes(found, "test")


def test_numbers_as_people_read_them() -> None:
    assert tables.percent([0.5]) == "50.0 %"
    assert tables.percent([0.5, 0.7]) == "60.0 ± 14.1 %"
    assert tables.percent([float("nan")]) == "–"


def test_mean_over_some_repetitions_says_of_how_many() -> None:
    """Seed 0 has no score; (0.5 + 0.7) / 2 are the other two's, and one alone has a worst client of 10 samples."""
    finals = [{}, *({"final/test/G/local/mean": acc} for acc in (0.5, 0.7))]
    clients = [CLIENTS[:0], CLIENTS.assign(stage="G", local=0.5), CLIENTS.assign(stage="G", local=0.5, n_held=9)]
    found = [SimpleNamespace(final=f, clients=c, n_clients=3, params={}) for f, c in zip(finals, clients, strict=True)]
    assert tables.scores(found, "test").rows == (("G", "60.0 ± 14.1 % (2 of 3)", "–", "–", "–", "50.0 % (1 of 3)"),)


def test_trials_are_listed_best_first_and_cut(capsys: pytest.CaptureFixture[str]) -> None:
    table = pd.DataFrame({"trial": range(20), "state": "complete", "rounds": 2, "m": [i / 20 for i in range(20)]})
    table = table.assign(seconds=1.0, x=0.5, error="", note=["learnt nothing" if i == 18 else "" for i in range(20)])
    out().print(drawn(tables.trials(table, ["m"], ["max"], 19, "study x", most=3)))
    lines = capsys.readouterr().out.splitlines()
    assert "the best 3 of 20 trials" in lines[0] and "note" not in lines[1]
    assert [line.rstrip().partition("x=")[2] for line in lines[2:]] == ["0.5", "0.5  (learnt nothing)", "0.5"]
    assert [line.split()[0] for line in lines[2:]] == ["*019", "018", "017"]


def test_trials_smaller_is_better_smallest_first() -> None:
    """Losses 0.3, 0.1, no value, 0.2 and 0.1: trials 1 and 4 are the best, of equal ones the first comes first."""
    table = pd.DataFrame({"trial": range(5), "state": "complete", "rounds": 2, "loss": [0.3, 0.1, None, 0.2, 0.1]})
    table = table.assign(seconds=1.0, x=0.5, error="")
    shown = tables.trials(table, ["loss"], ["min"], 1, "study x", most=3)
    assert shown.title == "study x, the best 3 of 5 trials"
    assert [row[0] for row in shown.rows] == ["*001", "004", "003"] and shown.chosen == 0
    assert [row[0] for row in tables.trials(table, ["loss"], ["min"], 1, "").rows][3:] == ["000", "002"]


@pytest.mark.parametrize(
    ("second", "title", "heads"),
    [
        ("val/L1/global/mean", "x, validation scores of L1", ("Acc(L)", "Acc(G)")),
        ("train/loss", "x", ("Acc(L) of L1", "train/loss")),
        ("val/L2/local/worst", "x", ("Acc(L) of L1", "val/L2/local/worst")),
        ("val/G/local/mean", "x", ("Acc(L) of L1", "Acc(L) of G")),
    ],
)
def test_title_of_trials_names_the_stage_of_all_objectives(second: str, title: str, heads: tuple[str, str]) -> None:
    """A training loss, and a score at L2, stood under "validation scores of L1"."""
    metrics = ["val/L1/local/mean", second]
    row = {"trial": 0, "state": "complete", "rounds": 2, **dict.fromkeys(metrics, 0.5), "seconds": 1.0, "error": ""}
    shown = tables.trials(pd.DataFrame([row]), metrics, ["max", "max"], 0, "x")
    assert (shown.title, shown.heads[3:5]) == (title, heads)


def test_trials_stopped_early_or_diverged_follow_complete_ones() -> None:
    """Trial 1 had 0.9 in the round before it diverged, trial 3 had 0.8 when it was stopped: neither is the best."""
    states = ["complete", "diverged", "complete", "pruned"]
    table = pd.DataFrame({"trial": range(4), "state": states, "rounds": 2, "m": [0.5, 0.9, 0.7, 0.8]})
    shown = tables.trials(table.assign(seconds=1.0, error=""), ["m"], ["max"], 2, "study x", most=3)
    assert [row[0] for row in shown.rows] == ["*002", "000", "001"]


# -- reproduce --------------------------------------------------------------------------------------------------------


def test_list_counts_the_cells_that_are_selected() -> None:
    """Of FLIU's Table I, 5 environments by 8 methods, each with 7 numbers, `--only path/*` listed all 40 cells."""
    counts = {}
    for words in ([], ["--only", "path/*"]):
        listed = cli("reproduce", "fliu/table1", "--list", *words).stdout
        (row,) = [line for line in listed.splitlines() if line.startswith("fliu/table1")]
        counts[bool(words)] = [int(number) for number in row.split()[-4:]]
    assert counts == {False: [40, 3, 280, 18], True: [8, 3, 56, 8]}


def test_the_list_of_suites_has_all_five_papers() -> None:
    listed = cli("reproduce", "--list").stdout
    for name in ("fliu/table1", "drdm/table6", "fedpg/fig5", "fedavg2rep/table3", "fedas/fig7"):
        assert name in listed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--until-decided"], "at scale smoke no claim is judged"),
        (["--scale", "small", "--hours", "2"], "--hours is a number above 0, and goes with --until-decided"),
        (["--scale", "small", "--until-decided", "--hours", "0"], "--hours is a number above 0"),
        (["--scale", "small", "--until-decided", "--hours", "nan"], "--hours is a number above 0"),
    ],
)
def test_hours_without_claims_to_decide_are_refused(words: list[str], message: str) -> None:
    result = cli("reproduce", "drdm/table3", *words)
    assert result.exit_code == 2 and message in result.stderr


def plan_of(suites: list[Any]) -> SimpleNamespace:
    return SimpleNamespace(suites=suites, parts=(), wanted=())


def test_a_report_that_cannot_be_made_stops_no_other_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("fliu/table1", "fliu/table2")
    told: list[str] = []

    def reproduce(plan: Any, on_suite: Any, **_: Any) -> list[Any]:
        found = [SimpleNamespace(suite=suite, problems={}, stand_ins={}, uncounted=0) for suite in plan.suites]
        for one in found:
            on_suite(one)
        return found

    def report(_: Any, found: Any) -> Any:
        told.append(found.suite.name)
        if found.suite.name == names[0]:
            raise ValueError("an axis without end")
        return SimpleNamespace(
            suite=found.suite.name,
            run="3 of 40",
            failed=0,
            ours={},
            derived={},
            networks=(),
            changes=(),
            standings=(),
            stand_ins=(),
        )

    monkeypatch.setattr(tuning, "plan", lambda chosen, *_, **__: plan_of([suite for suite, _ in chosen]))
    monkeypatch.setattr(tuning, "reproduce", reproduce)
    monkeypatch.setattr(sys.modules["pfl_ops.cli.reproduce"]._Keeper, "_report", report)
    result = cli("reproduce", *names)
    assert told == list(names)
    assert result.exit_code == 2 and "fliu/table2" in result.stdout and "3 of 40" in result.stdout
    assert result.stderr == "pfl-ops: no report of fliu/table1: ValueError: an axis without end\n"


@pytest.mark.parametrize(
    "words",
    [("drdm/table3",), ("drdm/table3", "--scale", "smoke"), ()],
)
def test_results_of_smoke_are_not_kept(words: tuple[str, ...], tmp_path: Path) -> None:
    result = cli("reproduce", *words, "--results", str(tmp_path / "kept"))
    assert result.exit_code == 2 and "--results keeps runs at small, medium or full" in result.stderr
    assert not (tmp_path / "kept").exists()


@pytest.mark.needs_data("mnist")
def test_reproduce_alone_runs_its_plan_and_lists_the_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """DRDM's Table 3 and Fig. 5 whole, at full; of FLIU two cells at medium, whose rounds are changed."""
    from pfl_ops.papers.default_plan import LARGER
    from pfl_ops.reports.suites.verdicts import ClaimSummary

    plans: list[Any] = []

    def reproduce(plan: Any, on_suite: Any, **_: Any) -> list[Any]:
        plans.append(plan)
        found = [
            SimpleNamespace(suite=part.suite, part=part, stand_ins=part.stand_ins, problems={}, uncounted=0)
            for part in plan.parts
        ]
        for one in found:
            on_suite(one)
        return found

    def report(_: Any, found: Any) -> Any:
        standings = [
            ClaimSummary("DRDM first", False, "holds", "undecided", 5, 13.04, 1.0, 16),
            ClaimSummary("FedAvg last", True, "holds", "holds", 5, 99.0, 1.0, 4),
            ClaimSummary("not run", False, "holds", "not run"),
        ]
        changes = ("training.rounds=10",) if found.part.changes else ()
        return SimpleNamespace(
            suite=found.suite.name, run="2", failed=0, ours={}, derived={}, networks=(), changes=changes, stand_ins=[],
            standings=standings if found.suite.name == "drdm/table3" else [],
        )  # fmt: skip

    monkeypatch.setattr(tuning, "reproduce", reproduce)
    monkeypatch.setattr(sys.modules["pfl_ops.cli.reproduce"]._Keeper, "_report", report)
    result = cli("reproduce")
    assert result.exit_code == 0, result.output
    full, medium = plans
    assert (full.scale, medium.scale) == ("full", "medium")
    assert [(part.suite.name, len(part.chosen)) for part in full.parts] == [("drdm/table3", 24), ("drdm/fig5", 6)]
    assert {len(jobs) for part in full.parts for jobs in part.jobs.values()} == {4}
    assert {part.chosen for part in medium.parts} == {("path/fedavg", "path/fliu")}
    assert len(medium.wanted) == 2  # the table's runs are the figure's
    assert {job.experiment.training.rounds for job in medium.wanted} == {10}
    assert "judged under changed settings: training.rounds=10 (fliu/table1, fliu/fig5)" in result.stdout
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["drdm/table3", "DRDM", "first", "holds", "undecided", "5", "13", "1", "about", "16"] in lines
    assert ["drdm/table3", "FedAvg", "last", "(derived)", "holds", "holds", "5", "99", "1", "4"] in lines
    assert "not run" not in result.stdout.partition("seeds to decide")[2]
    words = [line for line in lines if line[:2] == ["drdm/table4", "full"]]
    assert "kept with the sources" in result.stdout and len(words) == 1 and int(words[0][2].replace(",", "")) >= 285
    assert LARGER in " ".join(result.stdout.split())


@pytest.mark.parametrize("words", [["--scale", "smoke"], ["drdm/table3"], ["--all"], ["--set", "training.lr=1"]])
def test_names_and_flags_run_no_plan(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    scales: list[str] = []
    monkeypatch.setattr(tuning, "plan", lambda _, scale, **__: scales.append(scale) or plan_of([]))
    monkeypatch.setattr(tuning, "reproduce", lambda plan, **_: [])
    assert cli("reproduce", *words).exit_code == 0
    assert scales == ["smoke"]


def test_reproduce_says_what_changed_settings_do_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that can't be run so were named after all runs, a line each; settings without effect were not named."""
    monkeypatch.setattr(tuning, "reproduce", lambda plan, **_: [])

    def told(*changes: str, only: str = "path/{local,fedavg,fliu}") -> list[str]:
        given = (word for change in changes for word in ("--set", change))
        return cli("reproduce", "fliu/table1", "--only", only, *given).stderr.splitlines()

    assert told("training.momentum=0.5") == [
        "no run of fliu/table1 path/local, path/fliu: training: momentum belongs to optimiser sgd, not adam"
    ]
    why = "(scores come from test data)"
    assert told("evaluation.validation_share=0.3") == [f"without effect: evaluation.validation_share {why}"]
    why = "(the method does not read it)"
    assert told("participation={weighting: uniform}", "training.rounds=2") == [
        f"without effect: participation.weighting in 2 of 3 cells that have it {why}"
    ]
    assert told("training.lr=0.1") == []
    why = "(no chosen cell is changed by it)"
    assert told("training.lr=0.01", only="path/fedavg") == [f"without effect: training.lr {why}"], "its own rate"
    for cells, line in (("{fedavg,drdm}", ""), ("fedavg", f"without effect: algorithm.alpha {why}\n")):
        words = ("--only", f"a0.1/{cells}", "--set", "algorithm.alpha=2")
        assert cli("reproduce", "drdm/table3", *words).stderr == line


def test_claims_are_summed_up_apart_by_origin_and_network() -> None:
    """Claims decided for other networks are counted apart, and so are derived claims."""
    from pfl_ops.cli.reproduce_results import totals

    def summary(ours: dict[str, int], derived: dict[str, int], networks: tuple[str, ...] = ()) -> Any:
        return SimpleNamespace(ours=ours, derived=derived, networks=networks)

    own = [summary({"holds": 2, "undecided": 1}, {"does not hold": 1}), summary({"not run": 4}, {})]
    other = summary({"holds": 1}, {}, ("mlp in place of cnn",))
    assert totals([*own, other]) == [
        "2 of 7 claims decided: 2 hold, 0 do not",
        "1 of 1 derived claims, counted apart, decided: 0 hold, 1 do not",
        "1 of 1 claims decided for other networks than the papers', counted apart: 1 hold, 0 do not",
    ]
    assert totals([]) == []


def test_substitute_data_are_named_where_a_cell_was_run_on_them(tmp_path: Path, capsys: Any) -> None:
    """Every suite's cells have them in the plan: `--only mnist/*` said that digits took the place of CIFAR-10."""
    from pfl_ops.cli.reproduce_results import show_results

    done: Any = SimpleNamespace(
        suite=SimpleNamespace(name="a/b"), stand_ins={"cifar10/fliu": "digits"}, problems={}, uncounted=0
    )
    for used, told in (([], False), (["digits"], True)):
        summary: Any = SimpleNamespace(
            suite="a/b", run="1 of 2", failed=0, ours={}, derived={}, networks=(), changes=(), standings=[],
            stand_ins=used,
        )  # fmt: skip
        show_results([done], [summary], tmp_path, False, None)
        assert ("substitute data: digits for data sets that are not here" in capsys.readouterr().out) == told


def test_links_of_a_report_lead_to_the_server_that_keeps_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    outcome = FinishedRun.of_numbers(0, {}, run_id="r", experiment_id="8")
    assert page(outcome, "sqlite:///x.db") == "http://127.0.0.1:5000/#/experiments/8/runs/r"
    assert page(outcome, "http://there:80/") == "http://there:80/#/experiments/8/runs/r"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://elsewhere")
    assert page(outcome, None) == "https://elsewhere/#/experiments/8/runs/r"
