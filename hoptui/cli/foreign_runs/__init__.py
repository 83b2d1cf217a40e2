"""Runs that other tools have logged, read from their files, and recordings made of them."""
