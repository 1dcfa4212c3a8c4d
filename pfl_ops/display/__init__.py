"""Runs, studies and comparisons as a terminal and a notebook show them.

live      a picture that is drawn again in place
progress  one run while it goes
tables    scores and trials as rows of text
cards     tables and pictures as HTML for a notebook
"""
