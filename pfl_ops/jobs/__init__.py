"""One way to run experiments: jobs, on shares of this machine or of a Ray cluster, side by side.

A *job* is an experiment with a purpose: a study's trial, the test of its choice, a repetition, a cell of a suite. A
`JobSource` makes jobs (Optuna's search, a list); the `Runner` runs them through Ray Tune, starts a job again once whose
process or machine died, and reports one kind of event. A job's process computes and keeps its rounds on disk; only
the process that runs the runner tracks.

The only package that imports Ray.

    job             `Job`, and the `Payload` that its process gets
    plugins         the user's files, as they travel
    report          reports of a process: rounds, the end, why it failed
    work            a job, in its process
    process         Ray's side of it
    runner          `Runner`
    tracking_queue  tracking of finished jobs, in a thread
    repeat          repetitions of one experiment as jobs
    early_stop      ASHA, for trials
    resources       Ray started or joined, and a job's share of it
    ray_instance    Ray started on this machine for this process alone; all that is used of its private parts
"""

from pfl_ops.jobs import resources as resources  # first: Ray reads its settings when it is imported
