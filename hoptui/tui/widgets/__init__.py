"""The few widgets of our own, on Textual's line API, for the screens alone.

They draw lines and charts they are given and refresh only what changed; they never read the store by themselves.
"""
