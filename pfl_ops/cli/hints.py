"""Hints on flags that do not exist: the nearest one, or the one of the same meaning in another program."""

import difflib
from collections.abc import Collection, Mapping

OTHER_NAMES: Mapping[str, str] = {
    "--batch-size": "bs lbs",
    "--clients": "nc k",
    "--csv": "out output export save",
    "--dataset": "data",
    "--hours": "timeout time-limit",
    "--lr": "learning-rate local-learning-rate eta",
    "--optimiser": "opt",
    "--participation": "join-ratio jr frac fraction fraction-fit client-fraction sample-rate",
    "--repetitions": "times seeds num-seeds n-seeds runs num-runs repeat repeats",
    "--rounds": "global-rounds global-epoch global-epochs gr comm-rounds communication-rounds",
}
"""Flag -> its names in PFLlib, FL-bench, Flower and scripts, where the nearest spelling would be another flag."""

ONE_DASH: Mapping[str, str] = {"ls": "--local-epochs", "m": "--model", "t": "--repetitions"}
"""PFLlib's flags of one dash whose names are no flag here: name -> flag."""

NOTES: Mapping[tuple[str, str], str] = {
    ("run", "algorithm"): "The method has no flag: pfl-ops run fedavg",
    ("tune", "algorithm"): "The method has no flag: pfl-ops tune fedavg",
    ("tune", "sampler"): "Trials are proposed by Optuna's TPE, and no other",
    ("reproduce", "resume"): "The same command goes on by itself",
}
"""(command, name of a flag that it does not have) -> what to do instead."""

VALUES: Mapping[str, str] = {"gpu": "--device cuda", "cuda": "--device cuda", "cpu": "--device cpu"}
"""Name of a flag -> the flag and value of the same meaning."""


def flag_hint(command: str, wrong: str, flags: Collection[str]) -> str:
    """Return a sentence on a flag that the command does not have, or "".

    Args:
        command: its name. wrong: the flag as given. flags: those that the command has.

    >>> flag_hint("run", "--global_rounds", ["--rounds", "--local-epochs"])
    "Did you mean '--rounds'?"
    >>> flag_hint("run", "--lam", ["--lr", "--set"])
    'A setting without a flag: --set PATH=VALUE'
    >>> flag_hint("run", "--momentum", ["--lr", "--set"])
    'A setting without a flag: --set training.momentum=VALUE'
    >>> flag_hint("run", "-nc", ["--clients"]), flag_hint("run", "-did", ["--device"])
    ("Did you mean '--clients'?", 'A flag has two dashes')
    """
    name = wrong.strip("-").replace("_", "-").casefold()
    if (note := NOTES.get((command, {"algo": "algorithm", "method": "algorithm"}.get(name, name)))) is not None:
        return note
    same = [flag for flag, others in OTHER_NAMES.items() if name in others.split()]
    if not wrong.startswith("--"):
        other = next((flag for flag in (f"--{name}", ONE_DASH.get(name, ""), *same) if flag in flags), None)
        return f"Did you mean '{other}'?" if other else "A flag has two dashes"
    if name in VALUES:
        same.append(VALUES[name])
    bare = {flag.strip("-"): flag for flag in flags}
    close = [bare[found] for found in difflib.get_close_matches(name, bare, n=1)]
    for meant in [flag for flag in same if flag.split()[0] in flags] or close:
        return f"Did you mean '{meant}'?"
    if "--set" not in flags:
        return ""
    from pfl_ops.cli.settings_table import settings_rows

    paths = [row.path for row in settings_rows(name.replace("-", "_"))]
    return f"A setting without a flag: --set {paths[0] if len(paths) == 1 else 'PATH'}=VALUE"
