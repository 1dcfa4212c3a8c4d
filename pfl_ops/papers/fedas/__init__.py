"""FedAS' suites.

Source: Yang, Huang, Ye, "FedAS: Bridging Inconsistency in Personalized Federated Learning", CVPR 2024: Tables 2 to 4,
Figures 3 to 7.

    setting     what is run: data, networks, methods, measures, sizes
    tables      Tables 2 to 4
    figures     Figures 3 to 7
"""

from pfl_ops.papers.fedas.figures import (
    FIGURE_3A,
    FIGURE_3B,
    FIGURE_4A,
    FIGURE_4B,
    FIGURE_5,
    FIGURE_6A,
    FIGURE_6B,
    FIGURE_7,
)
from pfl_ops.papers.fedas.tables import TABLE_2, TABLE_3, TABLE_4

SUITES = (
    TABLE_2,
    TABLE_3,
    TABLE_4,
    FIGURE_3A,
    FIGURE_3B,
    FIGURE_4A,
    FIGURE_4B,
    FIGURE_5,
    FIGURE_6A,
    FIGURE_6B,
    FIGURE_7,
)

__all__ = ["SUITES"]
