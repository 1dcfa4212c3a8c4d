"""FedAvg2Rep's suites.

Source: FedAvg2Rep (fourth seed): Tables 2 to 4, Figures 1, 2 and 4 to 7.

    setting     what is run: data, networks, methods, measures, sizes
    tables      Tables 2 to 4
    figures     Figures 1, 2 and 4 to 7
"""

from pfl_ops.papers.fedavg2rep.figures import FIGURE_1, FIGURE_2, FIGURE_4, FIGURE_5, FIGURE_6, FIGURE_7
from pfl_ops.papers.fedavg2rep.tables import TABLE_2, TABLE_3, TABLE_4

SUITES = (TABLE_2, TABLE_3, TABLE_4, FIGURE_1, FIGURE_2, FIGURE_4, FIGURE_5, FIGURE_6, FIGURE_7)
