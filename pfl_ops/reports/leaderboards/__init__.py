"""Benchmarks and studies as reports.

leaderboard   a benchmark: who is ahead and by how much, how each method was searched, what was chosen
rows          tables of the command line as parts of a report
"""
