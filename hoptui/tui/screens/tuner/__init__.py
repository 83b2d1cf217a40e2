"""The tuner screen: its state, trials, knobs and limits."""
