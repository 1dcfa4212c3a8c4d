"""Descriptions on MLflow's page.

views       named views of its table of runs
questions   questions that views answer: the best method, the best trial, and why
notes       names of runs, and texts on top of runs and experiments
"""
