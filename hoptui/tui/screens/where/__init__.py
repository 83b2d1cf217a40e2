"""The screen of the lines that the time of a run goes to."""
