"""One module and one style sheet a screen; the app alone opens them.

A screen lays out widgets, asks the panels what to say and turns keys into commands; it never computes a figure.
"""
