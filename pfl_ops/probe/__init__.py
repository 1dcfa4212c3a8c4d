"""Real rounds of one experiment in several processes at once: how fast they are together, and what memory one takes.

What a tuning study measures before it begins, and how a trial keeps within its share.

    processes  the side that starts and asks them
    inside     what each of them does
    memory     what it took, and how it keeps within its share
    settle     an execution with nothing left to choose
"""

from pfl_ops.probe.processes import Probe, ProbeOutOfMemory, Speed

__all__ = ["Probe", "ProbeOutOfMemory", "Speed"]
