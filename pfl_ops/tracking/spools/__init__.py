"""Spools: what MLflow is to hold of a run, on disk until it has been sent.

spool          a run's entries in order
spool_folder   spools as folders: their files, headers, and what happens to a folder as a whole
journal        lines and headers with digests
entries        fields of entries, checked before they are sent
staged         files that entries send
outbox         the spools that earlier processes left, and re-runs of a run
requests       runs that their own process only simulates, and that a courier tracks
"""
