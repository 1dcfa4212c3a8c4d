"""The calls behind the commands that search.

tune_study  `tune`
benchmark   `benchmark`: several methods under one budget
planning    the studies that a command would begin or go on with; nothing is written
terms       the settings that methods must share to be compared
warm_start  the best configurations of an earlier study, tried first
choosing    `reproduce --choose`: the settings of a suite by a rule written down before
dashboard   Optuna's dashboard on the studies
"""
