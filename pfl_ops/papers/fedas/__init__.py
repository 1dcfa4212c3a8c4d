"""FedAS' suites.

Source: Yang, Huang, Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024: Tables 2 to 4,
Figures 3 to 7.

    setting     what is run: data, networks, methods, measures, sizes
    tables      Tables 2 to 4
    figures     Figures 3 to 7
"""

from pfl_ops.papers.fedas import figures, tables

SUITES = (
    tables.TABLE_2,
    tables.TABLE_3,
    tables.TABLE_4,
    figures.FIGURE_3A,
    figures.FIGURE_3B,
    figures.FIGURE_4A,
    figures.FIGURE_4B,
    figures.FIGURE_5,
    figures.FIGURE_6A,
    figures.FIGURE_6B,
    figures.FIGURE_7,
)
