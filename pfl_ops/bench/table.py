"""A report as a table for people."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pfl_ops.bench.report import BenchRow, CaseReport, Report
from pfl_ops.bench.settings import Figure
from pfl_ops.errors import count

SHORT = {"float32": "f32", "bfloat16": "bf16", "tf32": "tf32", "float64": "f64"}
HEADS: dict[Figure, tuple[str, ...]] = {
    "train": ("train/s", "min–max", "×", "peak"),
    "evaluate": ("eval/s", "×", "peak"),
    "round": ("rounds/s", "×"),
}


def render(report: Report) -> RenderableType:
    """Machine, a table a case, and what the columns mean; 100 columns wide."""
    parts: list[RenderableType] = [Text(line) for line in _machine(report)]
    for case in report.cases:
        parts += [Text(), _title(case), _table(case), *(Text(line) for line in _remarks(case))]
    parts += [Text(), *(Text(f"skipped {line}") for line in report.skipped), *(Text(line) for line in _legend(report))]
    return Group(*parts)


def _machine(report: Report) -> Iterator[str]:
    m = report.machine
    flags = ", ".join(m["cpu_flags"]) or "no vector extension known here"
    device = "" if m["device"] == "cpu" else f"{m['device']}; "
    yield f"{device}{m['cpu']}, {m['cores']} cores ({flags}), {m['memory_gib']:g} GiB"
    yield f"PyTorch {m['torch']}, Python {m['python']}, {count(m['threads'], 'thread')} by default"
    if m["load_before"] > 0.3:
        yield f"others were at work here when this began (load {m['load_before']:g}): trust the ratios more"
    if report.settings.other_load:
        yield f"another process was to take {report.settings.other_load:.0%} of a core meanwhile"


def _title(case: CaseReport) -> Text:
    what = f"{case.model} on {case.dataset}, B {case.batch}, {case.optimiser}"
    return Text(f"{what}: {case.clients} clients x {case.steps} steps, {case.parameters:,} parameters", style="bold")


def _table(case: CaseReport) -> Table:
    figures = [figure for figure in HEADS if any(figure in row.figures for row in case.rows)]
    table = Table("", "", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for head in (*(head for figure in figures for head in HEADS[figure]), "MiB"):
        table.add_column(head, justify="right")
    for row in case.rows:
        cells = [cell for figure in figures for cell in _cells(case, row, figure)]
        used = "" if row.memory_mib is None else f"{row.memory_mib:,.0f}"
        table.add_row(str(row.label) + "*" * row.chosen, SHORT[row.label.precision], *cells, used)
    return table


def _cells(case: CaseReport, row: BenchRow, figure: Figure) -> list[str]:
    series = row.figures.get(figure)
    if series is None:
        return ["" for _ in HEADS[figure]]
    ratio, share = case.ratio(row, figure), case.share(row, figure)
    span = "" if series.given_up else f"{number(min(series.values))}–{number(max(series.values))}"
    of_peak = "" if share is None else f"{share:.0%}"
    times = "" if ratio is None else f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"
    cells = {"train": [span, times, of_peak], "evaluate": [times, of_peak], "round": [times]}
    return ["~" * series.given_up + number(series.median), *cells[figure]]


def number(value: float) -> str:
    """Three to four digits: 0.42, 1,914, 61.3k, 613k, 2.75M."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:.3g}M"
    if value >= 100_000:
        return f"{value / 1000:,.0f}k"
    if value >= 10_000:
        return f"{value / 1000:.1f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _remarks(case: CaseReport) -> Iterator[str]:
    choice = case.beside_best()
    if choice is not None:
        best, ratio, fastest = choice
        yield f"auto takes: {case.auto}, {ratio:.2f} times as fast as {best.label} (best turns: {fastest:.2f})"
    elif case.auto is not None and not any(row.chosen for row in case.rows):
        yield f"auto takes: {case.auto}"
    beside = case.beside_jax()
    if beside is not None:
        yield f"training, float32: {beside[0].label} is {beside[2]:.2f} times as fast as the {beside[1].label}"
    peaks = (
        f"{max(series.values) / 1e9:,.0f} {SHORT[precision]} ({count(threads, 'thread')})"
        for (precision, threads), series in case.peaks.items()
    )
    yield f"matrix product, GFLOP/s: {', '.join(peaks)}"
    yield f"MFLOP a sample: training {case.work.train / 1e6:,.3g}, evaluation {case.work.forward / 1e6:,.3g}"
    yield from case.notes


def _legend(report: Report) -> Iterator[str]:
    s = report.settings
    yield f"Medians of {s.repeats}; each candidate in a process of its own, in turns."
    yield "× the plain loop: median of the ratios within a turn."
    yield "peak: share of a large matrix product's best speed, in the same precision, with as many threads or fewer."
    yield "~ far behind in a short trial, measured once. * what auto takes (float32)."
    if "evaluate" in s.measure:
        yield f"eval: {s.evaluate_models:,} models on {s.evaluate_images:,} pooled images, and on its own client's."
    if "round" in s.measure:
        yield "round: training, average, and the local view of each stage."
    cpu = "peak of the process, libraries included, and its workers; what they share counts once."
    yield "MiB: " + (cpu if report.machine["device"] == "cpu" else "peak of what PyTorch allocated on the device.")
