"""What a script gets wrong is shown by `status` and `doctor`, and a change for later by `set`."""

from __future__ import annotations

from tests.cli.conftest import Hoptui
from tests.conftest import TestNode, until

WRONG = """
import time, hoptui
run = hoptui.connect("wrong")
run.knob("good", 1, min=1, max=9)
run.knob("bad", 1, effect="fast")
run.log(5)
later = run.knob("later", 1, min=1, max=9, apply=lambda n: hoptui.LATER)
for i in run.iterations():
    time.sleep(0.01)
"""


def test_status_and_doctor_show_what_is_not_accepted(hoptui: Hoptui, node: TestNode) -> None:
    node.start(WRONG)
    until(lambda: [run for run in hoptui("ls", "--json").json if (run["iteration"] or 0) > 5])
    found = hoptui("status", "wrong", "--json").json
    assert [(one["code"], next(iter(one["fields"].values()))) for one in found["refused"]] == [
        ("knob.refused", "bad"),
        ("call.refused", "log"),
    ]
    assert set(found["knobs"]) == {"good", "later"}
    shown = hoptui("status", "wrong").out
    assert all(one["text"] in shown for one in found["refused"])
    (check,) = [one for one in hoptui("doctor", "--json").json["checks"] if one["id"] == "runs"]
    assert check["status"] == "warning"
    assert all(one["text"] in check["detail"] for one in found["refused"])


def test_set_says_that_a_value_takes_effect_later(hoptui: Hoptui, node: TestNode) -> None:
    node.start(WRONG)
    until(lambda: [run for run in hoptui("ls", "--json").json if (run["iteration"] or 0) > 5])
    answer = hoptui("set", "wrong", "later=5", "--timeout", "3", "--json")
    assert answer.code == 3
    (command,) = answer.json["commands"]
    assert (command["stage"], command["code"], command["effective"]) == ("scheduled", "later", None)
    again = hoptui("set", "wrong", "later=6", "--timeout", "3")
    assert command["reason"] in again.err
