"""Execution of a round: backend, processes and threads. None of it changes a result.

choose      the execution that was asked for, or the fastest by timing
timing      real steps of each candidate, in turns
decide      the fastest choice, from these timings
stackable   losses under which clients can be stacked
processes   processes of one thread each that answer jobs
workers     training and scoring by several such processes
"""
