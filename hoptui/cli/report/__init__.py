"""The report page: its sections as text, and writers for Markdown and HTML.

Pure functions from facts to text. Text from a run is untrusted, so each writer escapes all its input.
"""
