"""Search spaces: what a study may vary, read from YAML and checked against the experiment before the first trial.

A space is data (EXAMPLES 4). Its keys are paths of the experiment:

    training.lr: {float: [1.0e-4, 1.0e-1], log: true}
    training.local_epochs: {int: [1, 3]}
    algorithm.gamma.kind: {choice: [fixed, adaptive]}
    algorithm.gamma.value: {float: [0.0, 1.0], step: 0.1, when: {algorithm.gamma.kind: fixed}}
    first: [{...}]            # tried before anything is sampled

Both ends are included. `when` takes one value or a list; several conditions must all hold. A key may have a list of
ranges, of which `when` leaves one at most. A method without a file has the space that follows from its fields
(`derived`). Nothing here imports Ray or Optuna: a space draws its values from whatever has Optuna's `suggest_*` verbs.
"""

from pfl_ops.spaces.checking import check, hold, idle
from pfl_ops.spaces.ends import at_ends
from pfl_ops.spaces.finding import COMMON, find, names, read, read_common
from pfl_ops.spaces.grid import Axes, grid_points, grid_space
from pfl_ops.spaces.reading import from_dict, parse
from pfl_ops.spaces.shared import MethodSpace, in_unit_of, restrictions, share
from pfl_ops.spaces.space import Parameter, Point, Space, SpaceError, decoded

__all__ = [
    "COMMON", "Axes", "MethodSpace", "Parameter", "Point", "Space", "SpaceError", "at_ends", "check", "decoded", "find",
    "from_dict", "grid_points", "grid_space", "hold", "idle", "in_unit_of", "names", "parse", "read", "read_common",
    "restrictions", "share",
]  # fmt: skip
