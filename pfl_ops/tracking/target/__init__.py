"""The inside of MLflow.

run_info         a run as MLflow has it
schema           its tables: made whole, or recognised as unfinished
mlflow_private   parts that it does not document
saving           a network as the folder that it loads
served           the text that travels with such a network
"""
