"""Numbers, states, diagnoses and trials as text. The command line and the dashboard share it."""
