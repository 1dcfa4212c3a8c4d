"""Partitions, curves, comparisons and studies as pictures. Knows tables and records, not where they are stored.

Every function returns a `matplotlib.figure.Figure` made without pyplot, so none of them touches global state or needs a
display; `save`, `to_svg` and `to_png` write one, the same bytes for the same picture. matplotlib is imported when the
first picture is drawn. `with theme("dark"):` draws for a dark page.

Colours: methods by hues near Okabe's and Ito's, each with a marker of its own, so that they stay apart under the common
colour blindnesses and in print; `colours(names)` fixes them for all pictures of a report. Classes by Paul Tol's "muted"
scheme; more than ten classes by a perceptually even scale, where the colour tells the neighbourhood of a class, not its
number.

    environments   who holds what: partition
    onerun         one run: curves, clients
    trends         several runs as lines: lines, panels, panel, over; coinciding: which of them lie on others
    clouds         several runs as points: scatter, distributions, strip
    grids          two settings: bars, heat
    studies        trials: history, pareto
    files          save, to_svg, to_png
    adaptive       to_adaptive_svg: one drawing for light and dark pages
    canvas         empty figures; inline: their class, which a notebook shows
    style, looks   themes; colours by name
    swatches       swatch: a name's line and marker, for a legend in HTML
    bands          mean and spread of repetitions
    parts, labels  axes, remarks and legends; names beside what they name
"""

from pfl_ops.figures.adaptive import adaptive_variables, to_adaptive_svg
from pfl_ops.figures.bands import Band
from pfl_ops.figures.clouds import distributions, scatter, strip
from pfl_ops.figures.environments import partition
from pfl_ops.figures.files import save, to_png, to_svg
from pfl_ops.figures.grids import bars, heat
from pfl_ops.figures.looks import REST, colours
from pfl_ops.figures.onerun import MEANINGS, VIEWS, Records, clients, curves
from pfl_ops.figures.studies import history, pareto
from pfl_ops.figures.style import CLASSES, theme
from pfl_ops.figures.swatches import swatch
from pfl_ops.figures.trends import coinciding, lines, over, panel, panels

__all__ = [
    "CLASSES", "MEANINGS", "REST", "VIEWS", "Band", "Records", "adaptive_variables", "bars", "clients", "coinciding",
    "colours", "curves", "distributions", "heat", "history", "lines", "over", "panel", "panels", "pareto", "partition",
    "save", "scatter", "strip", "swatch", "theme", "to_adaptive_svg", "to_png", "to_svg",
]  # fmt: skip
