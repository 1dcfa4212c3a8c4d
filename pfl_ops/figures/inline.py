"""A figure that a notebook shows."""

from matplotlib.figure import Figure

INLINE_DPI = 110


class InlineFigure(Figure):
    """A figure that a notebook shows as the last value of a cell, once, although pyplot does not know it.

    IPython draws matplotlib's own figures only after pyplot was imported, and then again at the end of the cell.
    """

    def _repr_png_(self) -> bytes:
        from pfl_ops.figures.files import to_png

        return to_png(self, INLINE_DPI)
