"""What every reading means, once: its name on screen, its unit, where it comes from, and how to judge it.

Whoever shows readings may ask: the dashboard, the command line, exports. Nothing here reads or computes
anything.
"""

from hoptui.domain.devices import IDLE, Reason
from hoptui.presentation.readings.derived import DERIVED
from hoptui.presentation.readings.gpu import GPU, alarms, reasons
from hoptui.presentation.readings.host import HOST, PROCESS
from hoptui.presentation.readings.units import GROUPS, Group, Meaning, Unit, value_text

__all__ = [
    "DERIVED",
    "GPU",
    "GROUPS",
    "HOST",
    "IDLE",
    "PROCESS",
    "Group",
    "Meaning",
    "Reason",
    "Unit",
    "alarms",
    "reasons",
    "value_text",
]
