"""A net under a change of the machinery: what a version's jobs leave behind, written down and compared.

    python -m tests.net record FOLDER      run the jobs with the pfl-ops of this environment; FOLDER/net.json
    python -m tests.net compare OLD NEW    what differs between two of these files; exit code 1 if anything does

A job is a command as a user types it, with device, way, stack, workers and threads fixed, in a work folder of its own.
Of each run in MLflow it keeps the status, parameters, tags, every tracked key with all steps and values (bit for bit),
and the artifacts' names and digests; of the command, its exit code and the last lines on the terminal. Times, process
ids, addresses and MLflow's own ids are left out or replaced. The values depend on the processor: compare two versions
on one machine.
"""
