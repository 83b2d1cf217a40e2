"""What every reading means, once: its name on screen, its unit, where it comes from, and how to judge it.

Whoever shows readings may ask: the dashboard, the command line, exports. Nothing here reads or computes anything.
"""

from hoptui.domain.devices import IDLE, Reason
from hoptui.viewer.meanings.derived import DERIVED
from hoptui.viewer.meanings.gpu import GPU
from hoptui.viewer.meanings.host import HOST, PROCESS
from hoptui.viewer.meanings.throttle import alarms, reasons
from hoptui.viewer.meanings.words import GROUPS, Group, Meaning, Unit, value_text

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
