"""FedPG's suites.

Source: FedPG (third seed): Tables 1 and 2, Figures 4 and 5.

    setting     what is run: data, networks, methods, measures, sizes
    tables      Tables 1 and 2
    figures     Figures 4 and 5
"""

from pfl_ops.papers.fedpg.figures import FIGURE_4, FIGURE_5
from pfl_ops.papers.fedpg.tables import TABLE_1, TABLE_2

SUITES = (TABLE_1, FIGURE_4, FIGURE_5, TABLE_2)
