"""The speed of the engine on this machine, beside a plain loop: `pfl-ops bench`, or `python -m pfl_ops.bench`.

settings   what is measured
case       one network and batch size: data, experiment, floating-point operations
plain, ours, jax_loop   the candidates: what a user would write, the engine's ways, a jitted JAX scan
process    each candidate in a process of its own, timed there
entrants   who takes part, after a short trial
measure    windows, series and ratios
load       other load on purpose
peak       the machine's matrix product
session    all of it, in one run
report, table, record   the result: JSON, a table, an MLflow run
gpu_check   what to run first on a GPU: `make gpu-check`

Nothing here but `record` needs MLflow; Ray and Optuna are never needed.
"""
