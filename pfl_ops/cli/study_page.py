"""A study's page: what was chosen and how sure that is, its test, its trials, and pictures of its parameters."""

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import pfl_ops
from pfl_ops.display import tables
from pfl_ops.display.setting_cards import shared
from pfl_ops.errors import sentence
from pfl_ops.reports.leaderboards.rows import score, table_of
from pfl_ops.reports.pages.document import Document, ItemList, PageBlock, PageSection, Panel, Picture, Row, Table, Text
from pfl_ops.reports.pages.write import write
from pfl_ops.tuning.findings.pictures import in_theme
from pfl_ops.units import in_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pfl_ops.tuning import Study

CAPTIONS = {
    "importance_fanova": "Importance of the parameters for the validation score, by fANOVA.",
    "importance_ped_anova": "Importance of the parameters for being among the best tenth, by PED-ANOVA.",
    "slice": "The validation score against each parameter, a dot a trial in the colour of its number.",
    "contour": "The validation score over the two most important numbers, interpolated between the trials.",
    "parallel_coordinate": "Each trial as a line through its parameters, in the colour of its validation score.",
    "edf": "Share of the complete trials with at most this validation score.",
    "timeline": "When each trial ran, and how it ended; pruned: stopped early, fail: diverged, or an error.",
}
"""Name of a picture of `Pictures` -> its caption."""


def write_page(study: "Study", folder: Path) -> Path:
    """Write the page of a study to a folder, with its tables and pictures; return it.

    Raises:
        PflOpsError: the folder can't be written to.
    """
    return write(page(study), folder)


def generated() -> str:
    """Return what stands at the end of a page: by which version it was made, and when."""
    return f"pfl-ops {pfl_ops.__version__}, {datetime.now():%Y-%m-%d %H:%M}"


def page(study: "Study") -> Document:
    """Return a study's page."""
    sections = (
        PageSection("", tuple(_chosen(study))),
        PageSection("Confirmation", tuple(_confirmation(study))),
        PageSection("Search", tuple(_search(study))),
        PageSection("Parameters", tuple(_parameters(study))),
        PageSection("What all trials share", (ItemList(tuple(_shared(study).items())),)),
    )
    return Document(
        study.name,
        f"Study {study.name}",
        f"best: trial {study.trial:03d} of {len(study.table)}, {in_words(study.scores)} on validation data",
        tuple(section for section in sections if section.blocks),
        generated(),
    )


def _shared(study: "Study") -> dict[str, str]:
    """Return what all trials share, term and text; of several environments, the text of each that differs."""
    varied = [str(name) for name in study.table]
    each = [shared(experiment, varied) for experiment in study.in_environments or (study.experiment,)]
    told = {term: "; ".join(dict.fromkeys(one[term] for one in each)) for term in each[0]}
    if study.environments is None:
        return told
    held_out = study.environments["held_out"]
    names = [", ".join(dict.fromkeys(study.environments["environment"][some])) for some in (~held_out, held_out)]
    return {"environments": names[0] + f"; held out: {names[1]}" * bool(names[1]), **told}


def _chosen(study: "Study") -> Iterator[PageBlock]:
    """The choice and its test."""
    for seed, how in study.diverged.items():
        yield Text.warning(f"Test run with seed {seed}: {how}")
    for note in study.environment_notes:
        yield Text.warning(note)
    yield table_of("chosen", tables.chosen(study.best), f"The chosen configuration, trial {study.trial:03d}")
    for note in filter(None, (study.front_note, study.tie_note, study.ends_note)):
        yield Text(sentence(note), "note")
    if study.finals and not study.diverged:
        notes = [*tables.score_notes(study.finals, "test"), *study.test_data_notes]
        yield table_of("test", tables.scores(study.finals, "test"), notes=notes)
    if study.environments is not None:
        shown = tables.environments(study.environments)
        yield table_of("environments", shown, notes=list(study.below_environments), data=study.environments)
    if study.openings_note:
        yield Text(sentence(study.openings_note), "note")


def _confirmation(study: "Study") -> Iterator[PageBlock]:
    """The best configurations with new seeds."""
    found = study.confirmation
    if found is None:
        return
    yield Text(str(found))
    scores = found.table.pivot(index="trial", columns="seed", values="value").reindex(list(found.values))
    heads = ("trial", *(f"seed {seed}" for seed in scores.columns))
    rows = [
        Row.of(f"{'*' * (trial == found.winner)}{trial:03d}", *(score(found.metric, value) for value in values))
        for trial, values in zip(scores.index, scores.to_numpy(), strict=True)
    ]
    note = "*: chosen. In the order of the search, its best first."
    caption = "Validation scores of the best configurations with new seeds"
    yield Table.of("confirmation", caption, heads, rows, [note], found.table)


def _search(study: "Study") -> Iterator[PageBlock]:
    """The trials, and what ended the search."""
    told = [text for text in (study.ended, study.noise) if text]
    if told:
        yield ItemList(tuple(("", text) for text in told))
    if study.has_plot:
        one = "The trials one by one, and the best value so far."
        two = "The trials and their Pareto front; the chosen one is marked."
        yield Picture("trials", one if study.objective.single else two, study.plot)
    goal, chosen, most = study.objective, study.trial, len(study.table)
    if study.pareto is not None:
        front = tables.trials(study.pareto, goal.metrics, goal.modes, chosen, "Pareto front", most)
        yield table_of("front", front, data=study.pareto)
    trials = tables.trials(study.table, goal.metrics, goal.modes, chosen, "Trials", most)
    yield table_of("trials", trials, data=study.table)


def _parameters(study: "Study") -> Iterator[PageBlock]:
    """Optuna's pictures; those that can't be drawn, with the cause."""
    pictures = study.pictures
    if pictures is None:
        return
    for name in pictures.drawable:
        slices = pictures.slices() if name == "slice" else {}
        panels = tuple(Panel(label, _inked(draw)) for label, draw in slices.items())
        draw = partial(pictures.draw, name)
        whole = draw if name.startswith("importance") else _inked(draw)
        yield Picture(name, CAPTIONS[name], whole, panels=panels, layout="small")
    if told := str(pictures):
        yield Text(told, "note")


def _inked(draw: "Callable[[], Figure]") -> "Callable[[], Figure]":
    """One of Optuna's pictures, drawn once: its files need it several times, in several themes."""
    drawn = cache(draw)
    return lambda: in_theme(drawn())
