"""Bad input of each kind: exit code 2, one line on stderr, no traceback, nothing on stdout, nothing left on disk.

A new case is one `Bad` in the list of its kind. In its words, `{folder}` is a folder with the files of `FILES`, and the
working folder and the work folder are empty.
"""

import errno
import os
import shlex
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from documents import ROOT
from optuna.exceptions import StorageInternalError
from typer.testing import CliRunner, Result

from pfl_ops import registry
from pfl_ops.cli import app
from pfl_ops.cli.app import LONGEST_LINE


class Bad(NamedTuple):
    """A command line that is refused.

    Attributes:
        name: of the case.
        words: the command line, as one text that a shell would split, or as its words.
        expects: what stderr says, among other things.
        code: the exit code.
    """

    name: str
    words: str | tuple[str, ...]
    expects: str
    code: int = 2


METHOD = '''
import torch

from pfl_ops import register
from pfl_ops.algorithms.base import Algorithm, Field, Models, Rows


@register("{name}")
class Mine(Algorithm):
    """A method that breaks one promise."""

    {field}

    def init(self, task):
        return {init}

    def round(self, s, r):
        {before}
        return {answer}

    def personal(self, s, r):
        return {personal}
'''


def method(
    name: str,
    answer: str = '{"central": s["central"]}, {"G": Models(s["central"])}',
    init: str = '{"central": task.initial, "own": task.rows(task.initial)}',
    personal: str = 'Models(s["own"][r.cohort], r.cohort)',
    before: str = "pass",
    field: str = "",
) -> str:
    """The source of a plug-in whose method returns these expressions."""
    return METHOD.format(name=name, answer=answer, init=init, personal=personal, before=before, field=field)


BRACKETS = "[" * 10_000
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
FILES: dict[str, str | bytes] = {
    "list.yaml": "- a\n- b\n",
    "twice.yaml": "training.lr: 0.1\ntraining.lr: 0.2\n",
    "sexagesimal.yaml": "training: {rounds: 1:30}\n",
    "norway.yaml": "evaluation: {equal_tests: yes}\n",
    "merge.yaml": "training: {<<: {lr: 0.1}}\n",
    "tag.yaml": "training: !!python/object/apply:os.system ['true']\n",
    "date.yaml": "training.rounds: 2026-01-02\n",
    "infinite.yaml": "training.lr: .inf\n",
    "deep.yaml": BRACKETS,
    "bomb.yaml": BOMB,
    "itself.yaml": "a: &a [*a]\n",
    "binary.yaml": b"\x00\xff\xfe",
    "large.yaml": b"# " + b"x" * (1 << 20),
    "number.yaml": "7\n",
    "escape.yaml": '"\\e[31mred": 1\n',
    "long.yaml": f"{'a.' * 400}b: 1\n",
    "space_deep.yaml": f"training.lr: {BRACKETS}",
    "space_bomb.yaml": BOMB,
    "space_inf.yaml": "training.lr: {float: [0.1, .inf]}\n",
    "space_huge.yaml": f"training.local_epochs: {{int: [1, {'9' * 90}]}}\n",
    "space_step.yaml": "training.lr: {float: [0.1, 1], step: .nan}\n",
    "space_first.yaml": "training.local_epochs: {int: [1, 3]}\nfirst: [{training.local_epochs: .inf}]\n",
    "space_when.yaml": "training.optimiser: {choice: [sgd, adam]}\n"
    "training.lr: {float: [0.1, 1], when: {training.optimiser: []}}\n",
    "space_range.yaml": "training.lr: {float: [-1.0e+308, 1.0e+308], step: 1.0e-300}\n",
    "space_word.yaml": "training.lr: {float: [0.1, 1], Log: true}\n",
    "exit.py": "import sys\nsys.exit(3)\n",
    "interrupted.py": "raise SystemExit('not a module')\n",
    "base.py": "class Stop(BaseException): ...\nraise Stop('now')\n",
    "missing.py": "import nothing_of_that_name\n",
    "syntax.py": "def f(:\n",
    "null.py": b"a = 1\x00\n",
    "latin.py": b"a = '\xe9'\n",
    "recursion.py": "def f(): f()\nf()\n",
    "escaping.py": "raise ValueError('\\x1b[31mred\\nline two')\n",
    "one.py": method("twin"),
    "other.py": method("twin") + "# another file\n",
    "both.py": method("double") + method("double"),
    "taken.py": method("fedavg"),
    "named.py": method("../../up"),
    "field.py": method("bad_field", field="strength: object() = 1"),
    "default.py": method("bad_default", field="strength: float = Field(2.0, le=1)"),
    "excluded.py": method("excluded", field="strength: float = Field(2.0, exclude=True)"),
    "loss.py": "from pfl_ops import register\n\n\n@register('bad_mean')\ndef mean(net, w, x, y):\n"
    "    return net(w, x).mean()\n\n\n@register('bad_call')\ndef call(net, w, x, y):\n    return net[0]\n"
    "\n\n@register('good')\ndef good(net, w, x, y):\n    return (net(w, x)[:, 0] - y).square()\n",
    "loss_option.py": "from pfl_ops import register\n\n\n@register('bad_option')\ndef f(net, w, x, y, *, delta): ...\n",
    "loss_arguments.py": "from pfl_ops import register\n\n\n@register('bad_arguments')\ndef loss(w, x, y): ...\n",
    "none.py": method("gives_none", "None"),
    "three.py": method("gives_three", "{}, {}, {}"),
    "new_state.py": method("gives_new", '{"late": s["central"]}, {}'),
    "shape.py": method("gives_shape", '{"central": s["central"][1:]}, {}'),
    "dtype.py": method("gives_dtype", '{"central": s["central"].double()}, {}'),
    "rows.py": method("gives_rows", '{"own": s["own"][r.cohort]}, {}'),
    "clients.py": method("gives_clients", '{"own": Rows(r.cohort + 99, s["own"][r.cohort])}, {}'),
    "stage.py": method("gives_stage", '{}, {"L1": Models(s["central"])}'),
    "models.py": method("gives_models", '{}, {"G": s["central"]}'),
    "length.py": method("gives_length", '{}, {"G": Models(s["central"][:-1])}'),
    "lazy.py": method("gives_lazy", '{}, {"L2": lambda clients: None}'),
    "personal.py": method("gives_personal", personal="s['central']"),
    "in_place.py": method("in_place", before='s["central"] += 1'),
    "step.py": method("gives_no_rows", before='r.walk({"w": s["own"][r.cohort]}, lambda m, b: None)'),
    "carry.py": method("short_carry", before='r.walk({"w": s["central"][None]}, lambda m, b: {})'),
    "init.py": method("gives_init", init="[task.initial]"),
    "init_list.py": method("gives_list", init="{'central': [1, 2]}"),
    "divides.py": method("divides", before="r.t / 0"),
    "in_init.py": method("fails_in_init", init="{}['x']"),
    "empty.npz": b"",
    "no_label.csv": "a,b\n1,2\n",
    "town.csv": "label,town\n0,oslo\n1,bergen\n",
    "no.parquet": b"PAR1",
    "lists.json": '{"train": [[0, 1], [2]]}',
    "shared.json": '{"train": [[0, 1], [1]]}',
    "beyond.json": '{"train": [[99999]]}',
    "half.json": '{"train": [[0, 1], [2]',
}


class Trap:
    """Unpickling this ends the process."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)


LONG = "a" * 10_000
SET = "run fedavg --set"
PLUGIN = "run fedavg --plugin {folder}/"
SMALL = "--model linear --clients 4 --rounds 2 --train-size 200 --device cpu --workers 1 --way loop --plugin {folder}/"

ASSIGNMENTS = [
    Bad("set_twice", f"{SET} training.lr=0.1 --set training.lr=0.1", "--set training.lr is given twice"),
    Bad("set_and_section", f"{SET} 'training={{lr: 1}}' --set training.lr=2", "training.lr is given twice"),
    Bad("flag_twice", "run fedavg --rounds 2 --rounds 3", "--rounds is given twice"),
    Bad("flag_and_set", "run fedavg --rounds 2 --set training.rounds=2", "say the same thing twice"),
    Bad("no_value", f"{SET} training.lr=", "--set training.lr= needs a value"),
    Bad("no_path", f"{SET} =1", "--set needs path=value"),
    Bad("sexagesimal", f"{SET} training.rounds=1:30", "training.rounds (T) must be an integer"),
    Bad("underscore", f"{SET} training.rounds=1_000", "must be an integer in [1, 1,000,000], got '1_000'"),
    Bad("norway", f"{SET} evaluation.equal_tests=yes", "must be true or false, got 'yes'"),
    Bad("number_for_truth", f"{SET} evaluation.equal_tests=1", "must be true or false, got 1"),
    Bad("truth_for_number", f"{SET} training.rounds=true", "must be an integer"),
    Bad("truth_in_a_list", f"{SET} evaluation.synthetic=[true]", "evaluation.synthetic (c) must be"),
    Bad("truth_for_either", f"{SET} evaluation.subset=true", "evaluation.subset must be"),
    Bad("date", f"{SET} training.rounds=2026-01-02", "got '2026-01-02'"),
    Bad("brackets", f"{SET} training.lr={BRACKETS}", "training.lr (η) must be a number in (0, 1,000,000], got '[[["),
    Bad("alias", f"{SET} 'training.lr=*a'", "training.lr (η) must be a number in (0, 1,000,000], got '*a'"),
    Bad("bomb", (*SET.split(), f"training.lr={BOMB}"), "training.lr (η) must be a number in (0, 1,000,000]"),
    Bad("deep_path", f"{SET} {'a.' * 5000}b=1", "is not the name of a setting"),
    Bad("section", f"{SET} training=3", "training is a section"),
    Bad("mapping", f"{SET} 'training.lr={{a: 1}}'", "training.lr (η) must be a number in (0, 1,000,000]"),
    Bad("escape_in_path", (*SET.split(), "\x1b[31mred=1"), "'\\x1b[31mred' is not the name of a setting"),
]
NUMBERS = [
    Bad("digits_400", f"{SET} training.rounds={'9' * 400}", "training.rounds (T) must be an integer in [1, 1,000,000]"),
    Bad("digits_5000", f"{SET} training.rounds={'9' * 5000}", "training.rounds (T) must be an integer"),
    Bad("hex_digits", f"{SET} training.rounds=0x{'f' * 90}", "got a number of 109 digits"),
    Bad("chunk_and_loop", "run fedavg --way loop --chunk 5", "--way loop trains one client at a time, and --chunk 5"),
    Bad("flag_digits_400", f"run fedavg --rounds {'9' * 400}", "must be an integer in [1, 1,000,000], got '999"),
    Bad("scaling_name", f"{SET} data.scaling=halff", "data.scaling must be one of standard, half, unit or a list"),
    Bad(
        "scaling_zero",
        f"{SET} 'data.scaling=[1, 0]'",
        "data.scaling: the deviation in [mean, deviation] must be above 0",
    ),
    Bad(
        "scaling_bomb",
        (*SET.split(), f"data.scaling={BOMB}"),
        "data.scaling must be one of standard, half, unit or a list",
    ),
    Bad("scaling_deep", f"{SET} data.scaling={BRACKETS}", "data.scaling must be one of standard, half, unit or a list"),
    Bad("scaling_nan", f"{SET} 'data.scaling=[.nan, 1]'", "data.scaling"),
    Bad(
        "scaling_means",
        f"{SET} 'data.scaling=[[1, 2], 1]'",
        "data.scaling has 2 means, digits has 1 channels or features",
    ),
    Bad("scaling_text", f"{SET} data.scaling=half --dataset shakespeare", "scaling must be standard for text"),
    Bad(
        "scaling_frozen",
        f"{SET} data.scaling=unit --model resnet18_head",
        "data.scaling must be standard with resnet18_head",
    ),
    Bad("lr_1e400", f"{SET} training.lr=1e400", "training.lr (η) must be a number in (0, 1,000,000], got inf"),
    Bad("lr_nan", "run fedavg --lr nan", "training.lr (η) must be a number in (0, 1,000,000], got 'nan'"),
    Bad("lr_infinite", "run fedavg --lr=-inf", "training.lr (η) must be a number in (0, 1,000,000], got '-inf'"),
    Bad("eps_nan", f"{SET} evaluation.eps=[.nan]", "evaluation.eps"),
    Bad(
        "epochs_1e18",
        f"{SET} training.local_epochs=1e18",
        "training.local_epochs (E) must be an integer in [1, 10,000]",
    ),
    Bad("epochs_whole_1e18", f"run fedavg --local-epochs {10**18}", "must be an integer in [1, 10,000] or none"),
    Bad("steps", f"run fedavg --local-steps {10**18}", "training.local_steps (J) must be an integer in [1, 1,000,000]"),
    Bad("batch", f"run fedavg --batch-size {10**18}", "training.batch_size (B) must be an integer"),
    Bad("clients", f"run fedavg --clients {10**18}", "partition.clients (K) must be an integer in [1, 1,000,000]"),
    Bad("repetitions", f"run fedavg --repetitions {10**18}", "repetitions must be an integer in [1, 10,000]"),
    Bad("seed_negative", "run fedavg --seed=-1", "seed must be an integer in [0, 4,294,967,295], got '-1'"),
    Bad("seed_large", f"run fedavg --seed {2**64}", "seed must be an integer in [0, 4,294,967,295]"),
    Bad(
        "partition_seed", f"{SET} partition.seed=-3", "partition.seed must be an integer in [0, 4,294,967,295] or none"
    ),
    Bad("partition_seed_large", f"partition lsqs --set partition.seed={10**30}", "partition.seed must be an integer"),
    Bad("units", f"{SET} model.name=mlp --set model.hidden=[{10**12}]", "model.hidden must be"),
    Bad("method_epochs", f"run fedrep --set algorithm.head_epochs={10**12}", "algorithm.head_epochs (E_h) must be"),
    Bad("trials", f"tune fedavg --trials {10**18}", "100000"),
    Bad("concurrency", f"tune fedavg --concurrency {10**18}", "10000"),
    Bad("trials_none", "tune fedavg --trials 0", "greater than or equal to 1"),
    Bad("trials_of_several", "tune fedavg,fliu --trials 0", "greater than or equal to 1"),
    Bad("hours_none", "tune fedavg --hours 0", "--hours must be above 0 and at most 1,000,000, got 0"),
    Bad("hours_nan", "tune fedavg --hours nan", "--hours must be above 0"),
    Bad("samples_none", "tune fedavg --samples 0", "--samples must be a whole number of gradient samples in [1, "),
    Bad("samples_negative", "tune fedavg,fliu --samples -5", "--samples must be a whole number of gradient samples"),
    Bad("terminate_negative", "tune fedavg --terminate -1", "--terminate must be in [0, 100,000] trials, got -1"),
    Bad("seeds_per_trial", "tune fedavg --seeds-per-trial 0", "--seeds-per-trial must be in [1, 1,000], got 0"),
    Bad("table_trials", "replay {folder}/trials.parquet --trials 41", "--trials must be in [1, 40], the config"),
    Bad("table_seeds", "replay {folder}/trials.parquet --seeds-per-trial 13", "--confirm 3 needs 17, 13 for the"),
    Bad("arabic_digits", "run fedavg --rounds ٣", "training.rounds (T) must be an integer"),
    Bad("bench_clients", f"bench --clients {10**18}", "--clients must be an integer in [1, 1,000,000]"),
    Bad("bench_dashes", "bench --other-load 2", "--other-load must be a number in [0, 1]"),
    Bad("bench_nothing", "bench --precision ,", "'none' is the empty list"),
    Bad("bench_empty", "bench --precision ''", "--precision is empty; give a value, or leave it out"),
    Bad("uri_empty", ("run", "fedavg", "--tracking-uri", ""), "--tracking-uri is empty; give a value, or leave it out"),
    Bad("uri_empty_by_equals", "run fedavg --tracking-uri=", "--tracking-uri is empty; give a value, or leave it out"),
    Bad("uri_scheme", "compare --tracking-uri foo://bar", "tracking address 'foo://bar' is not one that works here"),
    Bad("uri_scheme_ui", "ui --tracking-uri foo://bar", "tracking address 'foo://bar' is not one that works here"),
    Bad("uri_no_file", "compare --tracking-uri sqlite:///", "tracking address 'sqlite:///' names no file"),
    Bad("storage_empty", ("tune", "fedavg", "--storage", ""), "--storage is empty; give a value, or leave it out"),
    Bad(
        "metric_empty", ("tune", "fedavg", "--metric", "val/L1/acc", "--metric", ""), "--metric is empty; give a value"
    ),
    Bad("target", "compare --target nan", "--target must be a finite number"),
    Bad("choose_gpus", "reproduce drdm/table3 --choose a.yaml --gpus-per-cell 0.5", "--choose goes with one suite and"),
    Bad("gpus_per_cell", "reproduce fliu/table1 --gpus-per-cell -1", "--gpus-per-cell must be 0 or a number above 0"),
    Bad("cpus_per_cell", "reproduce fliu/table1 --cpus-per-cell nan", "--cpus-per-cell must be a number above 0"),
]
NAMES = [
    Bad("algorithm_case", "run FedAvgg", "Did you mean 'fedavg'?"),
    Bad("algorithm_upper", "run FEDAVG", "no algorithm named 'FEDAVG'. Did you mean 'fedavg'?"),
    Bad("dataset_case", "run fedavg --dataset MNIST", "no dataset named 'MNIST'. Did you mean 'mnist'?"),
    Bad("model_case", "run fedavg --model CNN", "Did you mean 'cnn'?"),
    Bad("partition_case", "partition LSQS", "Did you mean 'lsqs'?"),
    Bad("alpha_sum", "partition lsqs --set partition.alpha=1e308", "(α) must be a number in (0, 1e+100], got 1e+308"),
    Bad("alpha_beyond", "partition zipf --set partition.alpha=1e309", "(α) must be a number in [0, 1e+100], got inf"),
    Bad("gamma_sum", f"{SET} participation.kind=dirichlet --set participation.gamma=1e308", "(0, 1e+100]"),
    Bad("shards", "partition sorted_shards --dataset digits --clients 900", "(digits has 1,438 samples), got 900 * 2"),
    Bad("shards_none", "partition sorted_shards --set partition.shards_per_client=0", "shards_per_client (S) must be"),
    Bad("optimiser_case", "run fedavg --optimiser SGD", "did you mean 'sgd'?"),
    Bad("preset_case", "run fedavg --preset PAPER", "Did you mean 'paper'?"),
    Bad("suite_case", "reproduce FLIU/Table1", "Did you mean 'fliu/table1'?"),
    Bad("metric_case", "tune fedavg --metric VAL/l1/acc", "did you mean 'val/L1/acc'?"),
    Bad("state_device", "run fliu --dataset digits --device cpu --state device", "is a GPU's memory, and this run"),
    Bad("metric_neutral", "tune fedavg --metric val/L1/local/clients", "is a score, a loss or a cost: val/L1/acc"),
    Bad("metric_neutral_several", "tune fedavg,fliu --metric val/L1/local/clients", "neither better large nor small"),
    Bad("long", f"run {LONG}", "no algorithm named 'aaaa"),
    Bad("long_dataset", f"run fedavg --dataset {LONG}", "no dataset named 'aaaa"),
    Bad("long_metric", f"tune fedavg --metric {LONG}", "no metric named 'aaaa"),
    Bad("long_only", f"reproduce fliu/table1 --only {LONG}", "has 1 part"),
    Bad("long_scheduler", f"tune fedavg --scheduler {LONG}", "scheduler must be asha, paired or none, got 'aaaa"),
    Bad("escape", ("run", "\x1b[31mred\nline two"), "no algorithm named '\\x1b[31mred\\nline two'"),
    Bad("escape_flag", ("run", "fedavg", "--\x1b[31mred"), "no such option"),
    Bad(
        "escape_dataset",
        ("run", "fedavg", "--dataset", "\x1b]0;title\x07.npz"),
        "data file \\x1b]0;title\\x07.npz does not exist",
    ),
    Bad("right_to_left", ("show", "\u202efedavg"), "no thing named '\\u202efedavg'"),
    Bad("null", ("run", "fedavg", "--dataset", "a\0.npz"), "data file a\\x00.npz does not exist"),
    Bad("line_break_metric", ("tune", "fedavg", "--metric", "a\nb"), "no metric named 'a\\nb'"),
    Bad("confirm_negative", "tune fedavg --confirm -1", "--confirm must be in [0, 1,000], got -1"),
    Bad("confirm_one", "tune fedavg,fliu --confirm-top 1", "--confirm-top must be in [2, 1,000], got 1"),
    Bad("confirm_front", "tune fedavg --confirm 2 --metric val/L1/acc --metric val/G/acc", "is not confirmed"),
    Bad("confirm_top_front", "tune fedavg --confirm-top 3 --metric val/L1/acc --metric val/G/acc", "is not confirmed"),
    Bad("confirm_top_none", "tune fedavg --confirm 0 --confirm-top 3", "--confirm-top has no effect: nothing is conf"),
    Bad("split_tune", "tune fedavg --set evaluation.split=test", "evaluation.split is not set by hand here: trials"),
    Bad("split_several", "tune fedavg,fliu --set evaluation.split=validation", "evaluation.split is not set by hand"),
    Bad("split_table", "tabulate fedavg --out {folder}/t.parquet --set evaluation.split=test", "is not set by hand"),
    Bad("compare_same", "compare --html a.csv --csv ./a.csv", "--html and --csv name the same file, a.csv"),
    Bad("compare_test", "compare --test z", "invalid value for '--test': 'z' is not one of 'anytime', 't' ("),
    Bad("trials_text", "tune fedavg --trials x", "invalid value for '--trials': must be a valid integer ("),
    Bad("empty", ("run", ""), "no algorithm named ''"),
    Bad("empty_show", ("show", " "), "no thing named ' '"),
    Bad("from_several", "tune fedavg,fliu --from-study a", "--from-study is for one method, got fedavg, fliu"),
    Bad("from_resumed", "tune --name a --resume --from-study b", "there is no work folder"),
    Bad("environment", "tune fedavg --environments pathh,ls", "no environment named 'pathh'. Did you mean 'path'?"),
    Bad("environment_empty", "tune fedavg --environments path,", "--environments needs names with commas between them"),
    Bad("environment_value", "tune fedavg --environments partition.alpha=x", "partition.alpha (α) must be a number"),
    Bad("environment_twice", "tune fedavg --environments ls,ls", "environments 'ls' and 'ls' are the same"),
    Bad("environments_several", "tune fedavg,fliu --environments path,ls", "environments are for one method"),
    Bad("vary_several", "tune fedavg,fliu --vary partition.alpha=0.1", "environments are for one method, got fedavg"),
    Bad("vary_empty", "tune fedavg --vary partition.alpha=", "--vary needs PATH=V1,V2"),
    Bad("vary_name", "tune fedavg --vary partition.alph=0.1", "Did you mean 'partition.alpha'?"),
    Bad("environment_pooled", "tune fedavg --environments path,ls --set data.pooled=true", "divide the pooled data"),
    Bad("held_out_tuned", "tune fedavg --environments path,ls --held-out ls", "held-out environment 'ls' is tuned on"),
    Bad("held_out_name", "tune fedavg --environments path --held-out nowhere", "no environment named 'nowhere'"),
    Bad("held_out_alone", "tune fedavg --held-out iid", "--held-out needs environments to tune on"),
    Bad("table_groups", "replay {folder}/trials.parquet --seeds-per-trial 2 --scheduler paired", "by client group"),
    Bad("grid_list", "tabulate fedavg --out t.parquet --grid model.hidden=[64]", "values are numbers, texts, true"),
    Bad("study_up", "tune fedavg --name ..", "the name of a study"),
    Bad("study_here", "tune fedavg --name .", "the name of a study"),
    Bad("study_hidden", "tune fedavg --name .a", "the name of a study"),
    Bad("study_slash", "tune fedavg --name a/b", "the name of a study"),
    Bad("study_dash", "tune fedavg --name=-a", "the name of a study"),
    Bad("study_long", f"tune fedavg --name {'a' * 101}", "the name of a study has at most 100 letters"),
    Bad("study_escape", ("tune", "fedavg", "--name", "\x1b[31m"), "the name of a study"),
    Bad("study_line_break", ("tune", "fedavg", "--name", "a\n"), "got 'a\\n'"),
    Bad("study_unknown", "tune --name nothing --resume", "there is no work folder"),
    Bad(
        "study_other_rounds",
        "tune --name a --resume --rounds 9 --metric train/loss",
        "leave out training.rounds, --metric",
    ),
    Bad("compare_nothing", "compare anything", "there is no work folder"),
    Bad("tag_twice", "compare --tag a=1 --tag a=2", "--tag a is given twice"),
]
PATHS = [
    Bad("config_folder", "run --config {folder}", "Is a directory"),
    Bad("config_device", "run --config /dev/zero", "can't read /dev/zero: it is not a regular file"),
    Bad("config_pipe", "run --config {folder}/pipe", "it is not a regular file"),
    Bad("config_missing", "run --config {folder}/no.yaml", "No such file"),
    Bad("config_name", f"run --config {LONG}", "File name too long"),
    Bad("config_closed", "run --config {folder}/closed.yaml", "ermission denied"),
    *(
        Bad(f"config_{name}", f"run fedavg --config {{folder}}/{name}.yaml", expects)
        for name, expects in {
            "list": "must map names to values",
            "twice": "line 2 is not valid YAML: 'training.lr' is given twice",
            "sexagesimal": "training.rounds (T) must be an integer in [1, 1,000,000], got '1:30'",
            "norway": "evaluation.equal_tests must be true or false, got 'yes'",
            "merge": "no setting named 'training.<<'",
            "tag": "line 1 is not valid YAML: could not determine a constructor",
            "date": "got '2026-01-02'",
            "infinite": "training.lr (η) must be a number in (0, 1,000,000], got inf",
            "deep": "more than 50 levels of nesting",
            "bomb": "more than 10,000 values",
            "itself": "'*a' stands in itself",
            "binary": "it is not a text file",
            "large": "it is larger than 1 MiB",
            "number": "must map names to values, got '7'",
            "escape": "'\\x1b[31mred' is not the name of a setting",
            "long": "is not the name of a setting",
        }.items()
    ),
    Bad("space_folder", "tune fedavg --search-space {folder}", "has no fedavg.yaml"),
    Bad("space_missing", "tune fedavg --search-space {folder}/no.yaml", "no such search space file"),
    Bad("space_device", "tune fedavg --search-space /dev/zero", "it is not a regular file"),
    Bad("space_long", f"tune fedavg --search-space {LONG}", "File name too long"),
    Bad("space_deep", "tune fedavg --search-space {folder}/space_deep.yaml", "more than 50 levels of nesting"),
    Bad("space_bomb", "tune fedavg --search-space {folder}/space_bomb.yaml", "more than 10,000 values"),
    Bad("space_inf", "tune fedavg --search-space {folder}/space_inf.yaml", "low must be at most high"),
    Bad("space_huge", "tune fedavg --search-space {folder}/space_huge.yaml", "must be an integer in [1, 10,000]"),
    Bad("space_step", "tune fedavg --search-space {folder}/space_step.yaml", "step must be a number above 0, got nan"),
    Bad("space_first", "tune fedavg --search-space {folder}/space_first.yaml", "inf is not a whole number"),
    Bad("space_range", "tune fedavg --search-space {folder}/space_range.yaml", "low must be at most high"),
    Bad(
        "space_when", "tune fedavg --search-space {folder}/space_when.yaml", "can't hold: training.optimiser has no va"
    ),
    Bad("space_word", "tune fedavg --search-space {folder}/space_word.yaml", "Did you mean 'log'?"),
    Bad("csv_label", "run fedavg --dataset {folder}/no_label.csv", "needs one column label (or y); it has neither"),
    Bad("csv_text", "run fedavg --dataset {folder}/town.csv", "column 'town' holds string; features are numbers"),
    Bad("csv_missing", "run fedavg --dataset {folder}/no.csv", "no.csv does not exist"),
    Bad("data_folder", "run fedavg --dataset {folder}", "a folder is no data set: write its samples into one .npz"),
    Bad("csv_folder", "run fedavg --dataset {folder}/folder.csv", "folder.csv is not a file"),
    Bad("parquet", "run fedavg --dataset {folder}/no.parquet", "no.parquet is damaged, or cannot be read"),
    Bad("data_ending", "run fedavg --dataset {folder}/list.yaml", "data files end in .npz, .csv or .parquet)"),
    Bad("data_dir", "run fedavg --data-dir {folder}/nowhere", "--data-dir: no folder"),
    Bad("data_dir_file", "run fedavg --data-dir {folder}/one.py", "--data-dir: no folder"),
    Bad("data_dir_empty", ("run", "fedavg", "--data-dir", ""), "--data-dir is empty; give a value, or leave it out"),
]
OUTPUTS = [
    Bad("plot_ending", "partition lsqs --plot out.pdf", "--plot takes a file that ends in .png or .svg"),
    Bad("plot_folder", "partition lsqs --plot {folder}/folder.png", "--plot: {folder}/folder.png is a folder"),
    Bad("plot_empty", ("partition", "lsqs", "--plot", ""), "--plot is empty; give a value, or leave it out"),
    Bad("plot_long", f"partition lsqs --plot {LONG}", "File name too long"),
    Bad("save_file", "partition lsqs --save {folder}/one.py", "--save: {folder}/one.py is no folder"),
    Bad("save_below_file", "partition lsqs --save {folder}/one.py/a", "({folder}/one.py is not a folder)"),
    Bad("html_folder", "compare --html {folder}", "--html: {folder} is a folder"),
    Bad("csv_device", "compare --csv /dev/full", "--csv: /dev/full is no regular file"),
    Bad("latex_below_file", "compare --latex {folder}/one.py/a.tex", "--latex: {folder}/one.py is no folder"),
    Bad("html_escape", ("compare", "--html", "\x1b[31m.html"), "--html takes a name without control characters"),
    Bad("json_folder", "bench --json {folder}", "--json: {folder} is a folder"),
    Bad("reports_file", "reproduce fliu/table1 --reports {folder}/one.py", "--reports: {folder}/one.py is no folder"),
    Bad("table_none", "replay {folder}/one.py", "one.py' is no table of trials; pfl-ops tabulate makes one"),
    Bad(
        "table_of_others",
        "tabulate fedavg --configurations 1 --seeds 1 --out {folder}/trials.parquet",
        "that are not of this table (other settings, data or code, or more seeds or configurations)",
    ),
    Bad("closed_folder", "partition lsqs --save {folder}/closed/a", "is not writable"),
]
IMPORT = "partition import {folder}"
IMPORTS = [
    Bad("missing", f"{IMPORT}/no.json --save a --dataset digits", "no.json': No such file or directory"),
    Bad("ending", f"{IMPORT}/list.yaml --save a", "index lists end in .json or .npz, PFLlib's data are a folder"),
    Bad("no_dataset", f"{IMPORT}/lists.json --save a", "index lists need --dataset"),
    Bad("dataset", f"{IMPORT}/lists.json --save a --dataset mnits", "no dataset named 'mnits'. Did you mean 'mnist'?"),
    Bad("half", f"{IMPORT}/half.json --save a --dataset digits", "half.json is damaged, or cannot be read"),
    Bad("npz", f"{IMPORT}/empty.npz --save a --dataset digits", "empty.npz is damaged, or no .npz file"),
    Bad("shared", f"{IMPORT}/shared.json --save a --dataset digits", "train gives sample 1 to two clients"),
    Bad("beyond", f"{IMPORT}/beyond.json --save a --dataset digits", "train has sample 99,999; digits has 1,438 there"),
    Bad("to_file", f"{IMPORT}/lists.json --save {{folder}}/one.py --dataset digits", "one.py is no folder"),
    Bad("no_folder", f"{IMPORT}/folder.png --save a.npz", "is no data folder of PFLlib: it has no train/0.npz"),
    Bad("folder_to", f"{IMPORT}/folder.png --save a", "--save takes a file that ends in .npz"),
    Bad("folder_dataset", f"{IMPORT}/folder.png --save a.npz --dataset digits", "--dataset is for index lists"),
    Bad("pickle", f"{IMPORT}/pfllib --save a.npz", "holds a pickle of something else than arrays of numbers (it names"),
    Bad("escape", ("partition", "import", "\x1b[31m.json", "--save", "a"), "its name has control characters"),
    Bad("no_save", f"{IMPORT}/lists.json", "missing option '--save'"),
]
PLUGINS = [
    Bad("folder", f"{PLUGIN}folder.png", "is not a regular file"),
    Bad("device", "run fedavg --plugin /dev/zero", "plug-in /dev/zero is not a regular file"),
    Bad("pipe", f"{PLUGIN}pipe", "is not a regular file"),
    Bad("nowhere", f"{PLUGIN}nowhere.py", "does not exist"),
    Bad("long", f"run fedavg --plugin {LONG}", "File name too long"),
    Bad("ending", f"{PLUGIN}empty.npz", "is not a Python file"),
    Bad(
        "exits",
        f"{PLUGIN}exit.py",
        "exit.py failed: it ends the process when it is imported: SystemExit: 3 (exit.py:2)",
    ),
    Bad("exits_with_text", f"{PLUGIN}interrupted.py", "SystemExit: not a module"),
    Bad("base_exception", f"{PLUGIN}base.py", "base.py failed: Stop: now (base.py:2)"),
    Bad("import", f"{PLUGIN}missing.py", "failed: ModuleNotFoundError"),
    Bad("syntax", f"{PLUGIN}syntax.py", "failed: SyntaxError"),
    Bad("null", f"{PLUGIN}null.py", "null bytes"),
    Bad("encoding", f"{PLUGIN}latin.py", "failed: SyntaxError"),
    Bad("recursion", f"{PLUGIN}recursion.py", "failed: RecursionError"),
    Bad("escape", f"{PLUGIN}escaping.py", "failed: ValueError: \\x1b[31mred line two"),
    Bad("two_files", f"{PLUGIN}one.py --plugin {{folder}}/other.py", "two algorithms are named 'twin'"),
    Bad("one_file", f"{PLUGIN}both.py", "two algorithms are named 'double'"),
    Bad("taken", f"{PLUGIN}taken.py", "'fedavg' is already defined"),
    Bad("name", f"{PLUGIN}named.py", "the name of an algorithm"),
    Bad("field", f"{PLUGIN}field.py", "field.py failed: "),
    Bad("loss_unknown", f"run fedavg {SMALL}loss.py --set training.loss=squard", "no loss named 'squard'. "),
    Bad("loss_shape", f"run fedavg {SMALL}loss.py --set training.loss=bad_mean", "must give one value a sample, [B]"),
    Bad(
        "loss_fails",
        f"run fedavg {SMALL}loss.py --set training.loss=bad_call",
        "TypeError: 'Net' object is not subscriptable (loss.py:11)",
    ),
    Bad("loss_method", f"run fedrod {SMALL}loss.py --set training.loss=good", "fedrod needs training.loss=cross"),
    Bad("loss_option", f"{PLUGIN}loss_option.py", "called as loss(net, w, x, y); give 'delta' a default value"),
    Bad("loss_arguments", f"{PLUGIN}loss_arguments.py", "no loss(net, w, x, y) and no partition(labels, n_clients)"),
    Bad("excluded", f"{PLUGIN}excluded.py", "strength must have neither exclude nor exclude_if: a run's hash has"),
    Bad("default", "run bad_default --plugin {folder}/default.py", "algorithm.strength must be a number <= 1, got 2.0"),
]
METHODS = [
    Bad(name, f"run {name} {SMALL}{file}", f"method '{name}': {expects}", code)
    for name, file, expects, code in [
        ("gives_none", "none.py", "round() returned None; expected (state, stages) (none.py:17)", 2),
        ("gives_three", "three.py", "round() returned a tuple of 3; expected (state, stages)", 2),
        (
            "gives_new",
            "new_state.py",
            "round() returned a float32 tensor [650] as state 'late', which init() did not",
            2,
        ),
        (
            "gives_shape",
            "shape.py",
            "round() returned a float32 tensor [649] as state 'central'; expected a float32",
            2,
        ),
        (
            "gives_dtype",
            "dtype.py",
            "round() returned a float64 tensor [650] as state 'central'; expected a float32",
            2,
        ),
        ("gives_rows", "rows.py", "round() returned a float32 tensor [", 2),
        ("gives_clients", "clients.py", "round() returned clients ", 2),
        ("gives_stage", "stage.py", "round() returned stage 'L1'; expected 'L2' and 'G'", 2),
        ("gives_models", "models.py", "round() returned a float32 tensor [650] as stage 'G'; expected Models", 2),
        (
            "gives_length",
            "length.py",
            "round() returned Models with a float32 tensor [649] as stage 'G'; expected P",
            2,
        ),
        ("gives_lazy", "lazy.py", "round() returned None from the function of stage 'L2'; expected Models", 2),
        ("gives_personal", "personal.py", "personal() returned a float32 tensor [650]; expected Models", 2),
        ("in_place", "in_place.py", "round() changed state 'central' in place; expected a new tensor", 2),
        (
            "gives_no_rows",
            "step.py",
            "<lambda>() returned None; expected a dict of the rows that change (step.py:18)",
            2,
        ),
        (
            "short_carry",
            "carry.py",
            "a carry needs one row for each client: 4 clients, got a float32 tensor [1, 650]",
            2,
        ),
        ("gives_init", "init.py", "init() returned a list; expected a dict of tensors by name", 2),
        ("gives_list", "init_list.py", "init() returned a list as state 'central'; expected a tensor", 2),
    ]
] + [
    Bad(
        "divides",
        f"run divides {SMALL}divides.py",
        "'divides' failed in round 1: ZeroDivisionError: division by zero",
        1,
    ),
    Bad("fails_in_init", f"run fails_in_init {SMALL}in_init.py", "failed in init(): KeyError: 'x' (in_init.py:15)", 1),
]
KINDS = {
    "set": ASSIGNMENTS,
    "number": NUMBERS,
    "name": NAMES,
    "path": PATHS,
    "output": OUTPUTS,
    "import": IMPORTS,
    "plugin": PLUGINS,
    "method": METHODS,
}
CASES = [pytest.param(case, id=f"{kind}-{case.name}") for kind, cases in KINDS.items() for case in cases]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`FILES`, a pipe, a folder that looks like a picture, and a file and a folder that can't be used."""
    made = tmp_path_factory.mktemp("files")
    for name, content in FILES.items():
        (made / name).write_bytes(content.encode() if isinstance(content, str) else content)
    shutil.copy(ROOT / "docs" / "results" / "trials-digits.parquet", made / "trials.parquet")
    os.mkfifo(made / "pipe")
    (made / "folder.png").mkdir()
    (made / "folder.csv").mkdir()
    for part in ("train", "test"):  # a data folder of PFLlib whose pickle would run a program
        (made / "pfllib" / part).mkdir(parents=True)
        np.savez(made / "pfllib" / part / "0.npz", data=np.array(Trap(), dtype=object))
    (made / "closed").mkdir(mode=0o500)
    (made / "closed.yaml").touch(mode=0o000)
    return made


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder, and no work folder; what plug-ins register is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PFL_OPS_HOME", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(registry, "_plugins", {})
    before = {table.kind: dict(table._found) for table in registry._tables}
    yield tmp_path
    for table in registry._tables:  # a case may be the first to import one of them
        own = {name: thing for name, thing in table._found.items() if name in table.builtin}
        table._found = before.get(table.kind, {}) | own


def refused(case: Bad, folder: Path) -> Result:
    """The result of the case's command line."""
    words = shlex.split(case.words) if isinstance(case.words, str) else list(case.words)
    return CliRunner().invoke(app, [word.replace("{folder}", str(folder)) for word in words])


@pytest.mark.usefixtures("no_ray")
@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_line_and_leaves_nothing(case: Bad, folder: Path, empty: Path) -> None:
    """Every promise of the module's first line, for each case."""
    if "closed" in str(case.words) and os.geteuid() == 0:
        pytest.skip("root may read and write everything")
    result = refused(case, folder)
    assert case.expects.replace("{folder}", str(folder)) in result.stderr, result.stderr
    assert result.exit_code == case.code
    assert result.stdout == ""
    assert result.stderr.startswith("pfl-ops: ")
    assert result.stderr.count("\n") == 1 and result.stderr.endswith("\n")
    assert result.stderr.removesuffix("\n").isprintable()
    assert len(result.stderr) < LONGEST_LINE + 50
    assert "Traceback" not in result.stderr
    assert not list(empty.iterdir())


def test_debug_shows_the_frames_of_the_methods_file_only(folder: Path, empty: Path) -> None:
    """Without the engine's frames between the command and the author's line."""
    case = next(case for case in METHODS if case.name == "divides")
    result = refused(case._replace(words=f"{case.words} --debug"), folder)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "Traceback of method 'divides' (most recent call last):",
        f'  File "{folder / "divides.py"}", line 18, in round',
        "    r.t / 0",
        *(["    ~~~~^~~"] if "~~~~^~~" in result.stderr else []),
        "ZeroDivisionError: division by zero",
        "pfl-ops: method 'divides' failed in round 1: ZeroDivisionError: division by zero (divides.py:18)",
    ]


def test_names_of_cases_are_unique() -> None:
    """A second case of the same name would hide the first in a report."""
    for cases in KINDS.values():
        assert len({case.name for case in cases}) == len(cases)


def test_internal_errors_are_one_line_with_exit_code_1(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours names its class; --debug shows where, and the exception stays behind the exit for tests."""

    def broken(kind: str) -> None:
        raise LookupError("a fault\nof ours \x1b[31m")

    monkeypatch.setattr("pfl_ops.cli.show.show_list", broken)
    result = CliRunner().invoke(app, ["list", "models"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "pfl-ops: internal error: LookupError: a fault of ours \\x1b[31m; --debug shows where\n"
    assert isinstance(result.exception.__cause__, LookupError)  # type: ignore[union-attr]
    assert "Traceback" in CliRunner().invoke(app, ["list", "models", "--debug"]).stderr


class Uncaught(BaseException):
    """An error of a plug-in's own class."""


def test_a_closed_pipe_is_no_error(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich ends the process when the output has no reader: `pfl-ops compare --help | head -1`."""

    def closed(kind: str) -> None:
        try:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        except BrokenPipeError:
            raise SystemExit(1)  # noqa: B904  (as Rich does it)

    monkeypatch.setattr("pfl_ops.cli.show.show_list", closed)
    result = CliRunner().invoke(app, ["list", "models"])
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "")


INTERNAL = "pfl-ops: internal error: {}; --debug shows where\n"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (Uncaught(0), INTERNAL.format("Uncaught: 0")),
        (SystemExit(0), INTERNAL.format("RuntimeError: exit() was called (SystemExit: 0)")),
        (BrokenPipeError(errno.EPIPE, "as `head` makes it"), ""),
    ],
)
def test_what_no_handler_of_errors_catches_is_one_line_too(
    error: BaseException, line: str, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss that raised them ended `run` in a traceback, or with exit code 0 and without a line."""

    def broken(kind: str) -> None:
        raise error

    monkeypatch.setattr("pfl_ops.cli.show.show_list", broken)
    result = CliRunner().invoke(app, ["list", "models"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == line


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (OSError(errno.ENOSPC, "No space left on device", "/a/b"), "No space left on device: /a/b"),
        (sqlite3.OperationalError("database or disk is full"), "No space left on device"),
    ],
)
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_full_disk_is_a_line_on_making_room(
    cause: Exception, reason: str, wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optuna said "invalid data in the commit, e.g. exceeding max length", as an internal error with exit code 1."""

    def full(kind: str) -> None:
        if not wrapped:
            raise cause
        raise StorageInternalError("invalid data in the commit") from cause

    monkeypatch.setattr("pfl_ops.cli.show.show_list", full)
    result = CliRunner().invoke(app, ["list", "models"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"pfl-ops: the disk is full ({reason}); make room, and repeat the command (a study that has begun: --resume)\n"
    )


def test_a_full_disk_that_was_dealt_with_is_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of another matter that was raised `from None` after a full disk was called a full disk."""

    def fails(kind: str) -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError:
            raise LookupError("another matter") from None

    monkeypatch.setattr("pfl_ops.cli.show.show_list", fails)
    result = CliRunner().invoke(app, ["list", "models"])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1) and "another matter" in result.stderr


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError(f"CUDA out of memory. Tried to allocate 2.00 GiB. {'GPU 0 has a total capacity of ... ' * 9}"),
    ],
    ids=["python", "cpu", "gpu"],
)
def test_missing_memory_is_a_line_on_taking_less(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no internal error, and PyTorch's advice on its allocator is left out."""

    def greedy(kind: str) -> None:
        raise error

    monkeypatch.setattr("pfl_ops.cli.show.show_list", greedy)
    result = CliRunner().invoke(app, ["list", "models"])
    assert (result.exit_code, result.stdout) == (1, "")
    start = f"pfl-ops: memory does not suffice ({type(error).__name__}"
    assert result.stderr.startswith(start) and "; train fewer clients at once (--chunk, " in result.stderr
    assert result.stderr.count("\n") == 1 and len(result.stderr) < 600
