"""The findings of studies.

study              what a study found
leaderboard        several methods side by side
leaderboard_notes  the sentences below a leaderboard
costs              methods at equal cost of their searches
pictures           importance and other pictures of a study
presented          a study on its page in MLflow
show               a study in the terminal
"""
