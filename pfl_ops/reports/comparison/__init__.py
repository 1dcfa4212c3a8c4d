"""Runs side by side.

compare          repetitions as one line, in each group the best first, and how sure a difference is
tracked          selection of tracked runs by name
fairness         groups of runs that can be compared, and what makes a comparison unfair
labels           names of groups and of the rows in them
compared         a comparison as tables and one report (compared_notes, compared_pictures); compared_cards: in notebooks
comparison_data  groups of lines: what the files `compared*` are given
"""
