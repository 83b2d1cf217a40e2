"""What there is to tell of a recorded run when it is over, or as far as it came: figures, no words. The
command line writes a page of it.

It reads an open recording and keeps nothing; what a recording cannot tell is None, and no figure is guessed.
"""

from hoptui.model.report.diagnosis_time import VerdictDuration
from hoptui.model.report.facts import EnergyUse, MetricCurve, Period, PhaseTotal, Report
from hoptui.model.report.reader import read

__all__ = ["EnergyUse", "MetricCurve", "Period", "PhaseTotal", "Report", "VerdictDuration", "read"]
