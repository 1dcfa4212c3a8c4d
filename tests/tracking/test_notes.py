"""Names of runs."""

import re

import numpy as np

from pfl_ops.config.experiment import Experiment
from pfl_ops.registry import load_plugin
from pfl_ops.tracking.descriptions.notes import (
    LONGEST_TRIAL_NAME,
    TITLE_LENGTH,
    began,
    comparison,
    experiment_name,
    line,
    run,
    study,
    title,
    trial_colour,
    trial_name,
)


def test_a_run_is_called_by_its_method_and_what_is_unusual_about_it():
    assert title(Experiment.of("fedavg", dataset="digits", seed=3, repetitions=2)) == "fedavg"
    assert title(Experiment.of("fedavg", dataset="digits", lr=0.25, clients=7)) == "fedavg clients=7 lr=0.25"
    assert title(Experiment.of("fedavg", dataset="digits", model="mlp")) == "fedavg model=mlp"
    assert title(Experiment.of("fedavg", dataset="mnist")) == "fedavg"
    fixed = {"algorithm.gamma.kind": "fixed", "algorithm.gamma.value": 0.5}
    assert title(Experiment.of("fliu", **fixed)) == "fliu gamma=fixed value=0.5"
    assert title(Experiment.of("fliu", lr=0.001)) == "fliu"  # its own recommendation
    every = {"lr": 1 / 3, "clients": 7, "rounds": 9, "batch_size": 3, "local_steps": 5, "participation": 0.123}
    long = title(Experiment.of("fedavg", **every, **{"training.momentum": 0.123, "training.weight_decay": 0.001}))
    assert len(long) == TITLE_LENGTH and long.endswith("…")


def test_runs_are_one_line_only_where_nothing_but_their_seed_differs():
    """MLflow's page shows the mean of a line: two settings must not be one."""
    assert line(Experiment.of("fedavg", lr=0.25, seed=3), "abcdefgh") == "fedavg lr=0.25"
    scored = Experiment.of("fedavg", **{"evaluation.subset": 30})
    assert title(scored) == "fedavg" and line(scored, "abcdefgh") == "fedavg #abcdef"
    near = [line(Experiment.of("fedavg", lr=lr), group) for lr, group in ((0.12341, "aaaaaaaa"), (0.12342, "bbbbbbbb"))]
    assert near == ["fedavg lr=0.1234 #aaaaaa", "fedavg lr=0.1234 #bbbbbb"]
    every = {"lr": 1 / 3, "clients": 7, "rounds": 9, "batch_size": 3, "local_steps": 5, "participation": 0.123}
    long = Experiment.of("fedavg", **every, **{"training.momentum": 0.123, "training.weight_decay": 0.001})
    assert line(long, "abcdefgh") == f"{title(long)} #abcdef"


def test_what_a_user_can_edit_has_the_hash_in_its_line(tmp_path):
    """After an edit of a plug-in or of a data file, runs of the same title are of another setting."""
    file = tmp_path / "mine.py"
    file.write_text(
        "from pfl_ops import register\n@register('line_split')\ndef split(labels, n_clients, *, rng): return []\n"
        "from pfl_ops.federation.losses import register as loss\n"
        "@loss('line_loss')\ndef mine(net, w, x, y): return net(w, x)[:, 0]\n"
    )
    load_plugin(file)
    own = Experiment.of("fedavg").override({"partition.kind": "line_split"})
    assert line(own, "abcdefgh") == f"{title(own)} #abcdef"
    x, y = np.zeros((20, 3), np.float32), np.arange(20) % 2
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    read = Experiment.of("fedavg", dataset=str(tmp_path / "mine.npz"))
    assert line(read, "abcdefgh") == f"{title(read)} #abcdef"
    files = {"model.weights": "start.pth", "partition": {"kind": "file", "path": "mine.json"}}
    for path, value in {**files, "training.loss": "line_loss"}.items():
        assert line(Experiment.of("fedavg").override({path: value}), "abcdefgh").endswith(" #abcdef")
    assert line(Experiment.of("fedavg", partition="path"), "abcdefgh") == "fedavg"


def test_a_trial_is_named_by_number_method_and_what_varies():
    point = {"algorithm.gamma.kind": "fixed", "algorithm.gamma.value": 0.12345, "training.lr": 1e-3}
    assert trial_name(3, "fliu", point) == "003 fliu gamma=fixed value=0.123 lr=0.001"
    assert trial_name(1234, "local", {"training.local_epochs": 2}) == "1234 local local_epochs=2"
    assert trial_name(3, "fliu", {"training.lr": 0.1}, "seed 5") == "003 (seed 5) fliu lr=0.1"
    same = {"algorithm.lr": 0.1, "training.lr": 12345.6}
    assert trial_name(0, "fedrep", same) == "000 fedrep algorithm.lr=0.1 training.lr=1.23e+04"
    long = trial_name(0, "fedrep", {f"training.setting_{i}": i for i in range(9)})
    assert len(long) == LONGEST_TRIAL_NAME and long.startswith("000 fedrep setting_0=0 ") and long.endswith("…")


def test_twelve_trials_have_twelve_colours():
    colours = [trial_colour(number) for number in range(24)]
    assert len(set(colours)) == 12 and colours[:12] == colours[12:]
    assert all(re.fullmatch("#[0-9A-F]{6}", colour) for colour in colours)


def test_a_study_says_what_was_chosen():
    text = study(
        "mine", "the largest `val/L1/acc`", {"training.lr": 0.01234567}, {"val/L1/acc": 1.25}, 3, "Tested.", "trials"
    )
    for said in ("Study mine", "**trial 003** (`val/L1/acc` 1.2500)", "| `training.lr` | 0.01234567 |", "Tested."):
        assert said in text
    assert "](#/experiments/{{experiment_id}}/runs?viewStateShareKey=trials&compareRunsMode=CHART" in text
    assert "viewStateShareKey=trials-fliu&" in began("mine", "trials-fliu")


def test_a_run_links_to_its_pictures_and_its_like():
    links = re.findall(r"\[([^]]+)\]\([^)]*?(?:figures/(\w+)|viewStateShareKey=(\w+))", run("tests"))
    assert links == [
        ("Accuracy over rounds", "accuracy", ""),
        ("Clients", "clients", ""),
        ("Partition", "partition", ""),
        ("Compared with other runs", "", "tests"),
    ]
    assert "](#/experiments/{{experiment_id}}/runs?viewStateShareKey=methods&" in comparison("digits, path")
    assert experiment_name(Experiment.of("fedavg", dataset="digits", partition="path")) == "digits-path"
