"""DRDM's suites.

Source: Krouka et al., "Distributionally Robust Federated Learning with Client Drift Minimization", 2025: Tables 1 to 6,
Figures 1 to 6.

    setting     what is run: data, networks, methods, measures, sizes
    tables      Tables 1 to 6
    figures     Figures 1 to 6
"""

from pfl_ops.papers.drdm.figures import FIGURE_1, FIGURE_2, FIGURE_3, FIGURE_4, FIGURE_5, FIGURE_6
from pfl_ops.papers.drdm.tables import TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5, TABLE_6

TABLES = (TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5, TABLE_6)
SUITES = (*TABLES, FIGURE_1, FIGURE_2, FIGURE_3, FIGURE_4, FIGURE_5, FIGURE_6)
