"""The engine: a federation as a matrix, trained one client at a time or stacked, with one meaning.

Rooms, each of which imports only those below it (tests/test_layers.py):

loop        a run, round by round
execution   backend, processes and threads, chosen by timing
scoring     which models are scored, and their accuracies
training    local training of a cohort
method      what a method sees: contract, round, batch
state       rows of all clients, in memory, in a file, in a checkpoint
network     a network as a row of numbers
settings    sections of an experiment that the engine reads
losses      losses by name
misuse      faults of a method's author, in one line
"""
