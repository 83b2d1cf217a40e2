"""The runs screen: a table of recorded and live runs, with filter, order, groups and marks."""
