"""The screens. Each has its own package, or module, and style sheet; only the app opens them.

A screen lays out widgets, gets their lines from components and turns keys into commands. It computes no
figures.
"""
