"""hoptui beside other terminal monitors, each on the same run: `python -m screenshots.comparison`."""
