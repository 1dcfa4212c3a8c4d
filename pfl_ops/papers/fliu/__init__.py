"""FLIU's suites.

Source: Hussaini, Theiß, Stein, "Local Performance vs. Out-of-Distribution Generalization: An Empirical Analysis of
Personalized Federated Learning in Heterogeneous Data Environments": Tables I to III, Figures 2 to 8.

    setting     what is run: data, networks, methods, measures, sizes
    tables      Tables I to III
    figures     Figures 2 to 8
"""

from pfl_ops.papers.fliu.figures import FIGURE_2, FIGURE_3, FIGURE_4, FIGURE_5, FIGURE_6, FIGURE_7, FIGURE_8
from pfl_ops.papers.fliu.tables import TABLE_1, TABLE_2, TABLE_3

SUITES = (TABLE_1, TABLE_2, TABLE_3, FIGURE_2, FIGURE_3, FIGURE_4, FIGURE_5, FIGURE_6, FIGURE_7, FIGURE_8)
