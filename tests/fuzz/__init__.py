"""Fuzzing: hostile inputs for each surface of hoptui that reads what others wrote.

See docs/internals/fuzzing.md. `python -m tests.fuzz` runs the harnesses.
"""
