"""The papers' suites as runs.

plans         the runs of some suites at a scale
cells         events of cells, suites as they end, finished cells at other scales
deciding      the open claims, and the seeds that may decide them
reproduction  the runs of a call of `reproduce`
reproducing   `reproduce`
"""
