"""Suites: a paper's tables and figures, ours beside theirs.

suite           the report of a suite
suites          the reports of all suites in one folder, and the page that leads to them
results_pages   Markdown pages of the results that are kept in files
layout          a table in a paper's layout
charts          a suite's pictures
verdicts        its claims, judged in the paper's numbers and in ours
sensitivity     its claims under changed settings
order           the order of methods in a public table
origins         settings with their origins
background      damage of the text, runs, machine, cost
"""
