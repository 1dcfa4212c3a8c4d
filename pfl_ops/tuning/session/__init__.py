"""One call of a study: its trials, the confirmation, the test of the choice.

begin        a study before it begins, and its resources
session      the call: trials, confirmation, test runs
search       Optuna: the proposals and the results
trials       a study's trials as jobs, tracked
confirm      the best configurations with new seeds, from which the choice is made
finals       the test of the choice
baselines    FedAvg in each environment: the scale of the scores there
tracked_job  jobs with their runs in MLflow
children     the runs below a study's in MLflow: trials, new seeds, FedAvg in environments
reconcile    runs in MLflow as the study on disk says
events       the events of a study, for who watches
"""
