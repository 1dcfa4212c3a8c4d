"""From the spools to MLflow.

delivery   the thread that sends, and keeps trying while the target is down
sender     one entry as calls to MLflow; sending it twice changes nothing
logs       the log file of what MLflow prints during an outage
"""
