"""Charts: raster, axes, plots, and the viewport that charts of a screen share."""
