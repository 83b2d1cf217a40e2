"""A report as a page that people send to each other: its sections in words, and two ways to write them, Markdown and HTML.

Pure: facts in, text out. Everything that comes from a run is foreign text, and each writer escapes all that it is given.
"""
