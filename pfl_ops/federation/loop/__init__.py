"""A run, round by round.

build      from an experiment's sections to task and trainer
choosing   the place of rows, and the execution: as before, as asked for, or by timing
cohort     the clients of a round
simulate   the rounds: train, score, keep
diverged   losses and parameters that are not finite
finish     final and best scores, and a table of clients
estimate   time and memory of a run, before it starts
engine     digest of the engine's code
"""
