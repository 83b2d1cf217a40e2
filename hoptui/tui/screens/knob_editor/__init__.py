"""The knob editor and the list of staged changes."""
