"""Statistics over repetitions: means and intervals, tests for a fixed number of seeds, and anytime-valid tests.

Here a value belongs to a repetition (a seed); `metrics` has the statistics over the clients of one run.

    fixed     mean, t interval, paired t test, Holm's correction: the number of seeds is fixed beforehand
    anytime   e-processes, confidence sequences: seeds may be added until the answer is clear
    ranks     agreement of two orders: Kendall's τ
    dominance comparison by several values at once: the Pareto front
"""

from pfl_ops.statistics.anytime import Evidence as Evidence
from pfl_ops.statistics.anytime import above as above
from pfl_ops.statistics.anytime import anytime as anytime
from pfl_ops.statistics.anytime import common_prefix as common_prefix
from pfl_ops.statistics.anytime import confidence_sequence as confidence_sequence
from pfl_ops.statistics.anytime import e_bh as e_bh
from pfl_ops.statistics.anytime import e_process as e_process
from pfl_ops.statistics.anytime import e_process_above as e_process_above
from pfl_ops.statistics.dominance import non_dominated as non_dominated
from pfl_ops.statistics.fixed import ALIKE as ALIKE
from pfl_ops.statistics.fixed import LEVEL as LEVEL
from pfl_ops.statistics.fixed import Difference as Difference
from pfl_ops.statistics.fixed import holm as holm
from pfl_ops.statistics.fixed import interval as interval
from pfl_ops.statistics.fixed import mean_std as mean_std
from pfl_ops.statistics.fixed import paired as paired
from pfl_ops.statistics.fixed import to_the_first as to_the_first
from pfl_ops.statistics.ranks import Agreement as Agreement
from pfl_ops.statistics.ranks import agreement as agreement
from pfl_ops.statistics.ranks import kendall_tau as kendall_tau
