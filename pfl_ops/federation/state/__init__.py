"""State of all clients, in memory and on disk.

rows         one row a client; a row that was never written costs nothing
matrix       storage of rows, in memory or in a file
snapshot     a state as named tensors, a few at a time
durable      files and folders that survive a kill
checkpoint   what a run needs to go on: a base, and what changed since
"""
