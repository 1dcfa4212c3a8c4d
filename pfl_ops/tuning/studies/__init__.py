"""A study: its definition, and its record on disk.

settings        the definition of a study
objective       one metric or several, and which way is better
environments    named settings in which one configuration has to do well
scored_clients  the clients behind a trial's scores
parts           trials of several runs, of whose scores their value is made
paired          a pruner between two of these runs
limits          the limits that a call gives to a study
budget          trials, hours, samples: how much of them a search has spent, and which ended it
tested          the tests of a choice in environments
samplers        Optuna's samplers, with stepped values in decimals
study_database  where studies are kept: storages at addresses, locks
study_storage   the study on disk: its trials and how they ended
"""
