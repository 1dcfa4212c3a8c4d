"""A method's view of the engine; `algorithms.base` offers it to authors.

contract   arguments and results: Task, Models, Rows, Share, State, Stages
round      one round: the cohort, and verbs that act on all of it at once
walk       length of a walk, keys of its draws
batch      one step of a walk, for the clients that still have batches
method     the three functions of a method
notes      values that a method notes for the curves
checked    a method whose answers are checked against the contract
"""
