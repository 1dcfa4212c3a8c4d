"""A report as data, and what it looks like.

document   a report as plain data: sections of tables, pictures and text
html, markdown, latex   its looks
write      its files in a folder
"""
