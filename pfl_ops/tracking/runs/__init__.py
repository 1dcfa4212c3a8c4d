"""Runs in MLflow: recorded, found, and read again.

store      runs are opened, found and read; nothing above this package knows MLflow
run        a run that is being recorded: all that it is given goes to its spool first
finished   finished runs as results
earlier    runs of the same settings and data
"""
