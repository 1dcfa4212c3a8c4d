"""The questions that MLflow's page is to answer at once, as saved views: which method, which trial, and why."""

from collections.abc import Collection, Sequence

from pfl_ops import metric_keys, metrics, tag_names
from pfl_ops.metrics import Split
from pfl_ops.tracking.descriptions.views import Chart, View

SCORES = ("acc", "local/mean", "global/mean", "local/worst")
"""The scores that judge a run, at the stage of its method's own models: score/acc, score/local/mean, ..."""


def scores(final: dict[str, float], split: Split, stage: str) -> dict[str, float]:
    """`score/...`: the last full evaluation at the method's own stage, under names that all methods share."""
    found = {f"score/{name}": final.get(metrics.key(split, stage, name, prefix="final/")) for name in SCORES}
    return {key: value for key, value in found.items() if value is not None}


def methods_key(kind: str) -> str:
    """Return the key of the view of runs of a kind; `kind`: as for `methods`."""
    return "tests" if kind == "final" else "methods"


def methods(kind: str, known: Collection[str]) -> View:
    """The best method, its lead and settings: runs of one method and settings are one row and one line.

    Args:
        kind: run, final or cell: the runs that are compared.
        known: the metrics that they have.
    """
    key = methods_key(kind)
    charts = (
        Chart("BAR", "Acc = Acc(L) + Acc(G)", ("score/acc",)),
        Chart("BAR", "Acc(L): on each client's own data", ("score/local/mean",)),
        Chart("BAR", "Acc(G): on the data of all clients", ("score/global/mean",)),
        Chart("BAR", "the worst client", ("score/local/worst",)),
        Chart("SCATTER", "local against global", ("score/global/mean", "score/local/mean")),
    )
    shown = [key for key in known if metric_keys.place(key) < len(metric_keys.CURVES)]
    curves = [Chart("LINE", key, (key,)) for key in sorted(shown, key=metric_keys.place)]
    return View(
        key=key,
        name=key.capitalize(),
        where=f"tags.`{tag_names.KIND}` = '{kind}'",
        columns=(
            *(("metrics", f"score/{score}") for score in SCORES),
            ("metrics", f"{metric_keys.TOTAL_PREFIX}cost/up_bytes"),
            *(("params", path) for path in ("training.lr", "training.rounds")),
        ),
        order="score/acc",
        descending=True,
        sections=(("Which method is best?", charts), ("Over rounds", tuple(curves))),
        folded=tuple(known),
        group=tag_names.CELL if kind == "cell" else tag_names.METHOD,
    )


def trials_key(method: str = "") -> str:
    """Return the key of the view of a study's trials; `method`: as for `trials`."""
    return f"trials-{method}" if method else "trials"


def trials(
    study: str,
    metric: Sequence[str],
    modes: Sequence[str],
    paths: Sequence[str],
    always: Sequence[str],
    stages: Sequence[str],
    method: str = "",
    group: str = "",
) -> list[View]:
    """The best trial and its settings; and the study with all that belongs to it.

    Args:
        study: its name. method: where several studies share an MLflow experiment, whose this is.
        metric, modes: the objective.
        paths: the settings that vary. always: those that every trial has.
        stages: those that trials score. group: tag whose runs are one row, their mean; "": a trial is one run.
    """
    views = {view: [metrics.key("val", stage, view, "mean") for stage in stages] for view in ("local", "global")}
    both = tuple(key for pair in zip(views["local"], views["global"], strict=True) for key in pair)
    varied = tuple(("params", path) for path in paths)
    goals = tuple(dict.fromkeys([*metric, *both]))
    chosen = ("tags", tag_names.CHOSEN)
    title = f": {method}" if method else ""
    scatter = (metric[0], metric[1]) if len(metric) > 1 else (views["global"][0], views["local"][0])
    known = [metrics.key("val", stage, view, "q50") for stage in stages for view in ("local", "global")]
    known += [metrics.key("val", stage, "acc") for stage in stages]
    charts = (
        *(Chart("BAR", key, (key,)) for key in metric),
        Chart("PARALLEL", "settings", tuple(metric), tuple(always)),
        Chart("SCATTER", "what was gained by what", scatter),
    )
    curves = tuple(Chart("LINE", key, (key,)) for key in sorted([*goals, "train/loss"], key=metric_keys.place))
    best = View(
        key=trials_key(method),
        name=f"Trials{title}",
        where=f"tags.`{tag_names.KIND}` = 'trial' and tags.`{tag_names.STUDY}` = '{study}'",
        columns=(*(("metrics", key) for key in goals), chosen, *varied, ("tags", tag_names.TRIAL_STATE)),
        order=metric[0],
        descending=modes[0] == "max",
        sections=(("Which trial is best, and at which settings?", charts), ("Over rounds", curves)),
        folded=(*known, "cost/up_bytes", "train/lr"),
        group=group,
    )
    if method:
        return [best]
    bars = tuple(Chart("BAR", key, (key,)) for key in (metric[0], "score/acc"))
    whole = View(
        key="study",
        name="Study",
        where="",
        columns=(*(("metrics", key) for key in (*metric, "score/acc", "score/acc/std", "score/n")), chosen, *varied),
        order="",
        descending=True,
        sections=(("The study", bars),),
        folded=(*known, "leaderboard/test", "cost/up_bytes", "train/lr"),
    )
    return [best, whole]
