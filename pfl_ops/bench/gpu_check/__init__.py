"""Checks to run first on a GPU: `make gpu-check`, or `python -m pfl_ops.bench.gpu_check`.

options     sizes, device and time of a check
data        MNIST, or random data of its shape
outcome     rows of a check, as a table and as JSON
waits       moments in a training step at which the host waits for the GPU
agreement   methods, repeats and scores: the same results in all ways
speed       samples per second of networks in stacks, and of processes side by side
cell        rounds of a published experiment at its own size: time, memory
inside      checks that run in a process of their own
session     all checks, one after the other

Nothing here needs MLflow, Ray, Optuna, Typer or Rich.
"""
