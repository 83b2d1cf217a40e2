"""Charts: axes, plots, the widget that draws them, and the grid of a screen with its time range."""
