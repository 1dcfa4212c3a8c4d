"""Tables of trials, for research on tuners.

trial_table  configurations, seeds and environments in one file, with the truth on test data
table_plan   configurations, environments and seeds of such a table
tabulation   its runs
replay       studies on it, with runs looked up
regrets      their regrets
"""
