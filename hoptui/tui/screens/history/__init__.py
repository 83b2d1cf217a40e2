"""The history screen: every command of a run and what it did."""
