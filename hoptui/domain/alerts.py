"""Alerts: which events are alerts, and what an alert carries. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

import msgspec

from hoptui.domain.devices import Level
from hoptui.domain.diagnosis import Diagnosis
from hoptui.domain.facts import Fact

Kind = Literal[
    "ended", "crashed", "hung", "nan", "straggler", "gpu_lost", "memory", "gpu_idle", "node_silent"
]
KINDS: tuple[str, ...] = get_args(Kind)
TEST, SUPPRESSED = "test", "suppressed"
"""Kinds that no setting turns off: that of `hoptui alerts test`, and the notice of the hourly limit."""
OF_THE_HEAD: frozenset[str] = frozenset(("ended", "crashed", "hung", "nan", "straggler"))
"""Kinds that concern all ranks of a run: of its nodes, that of rank 0 alone sends them."""
NORMAL_ENDS = ("finished", "stopped")


class Trigger(NamedTuple):
    """An event that is an alert of a kind.

    It fires once, until it is good again: an event with a code in `good`. With `subject`, a field of both
    events, it is good again once that is so for each value of the field.
    """

    kind: Kind
    good: tuple[str, ...] = ()
    subject: str = ""


LOST = Trigger("gpu_lost", good=("gpu.back",))
TRIGGERS: Mapping[str, Trigger] = {
    "run.exited": Trigger("crashed"),
    "run.hung": Trigger("hung", good=("run.progress",)),
    "number.bad": Trigger("nan", good=("number.good",), subject="metric"),
    "run.straggler": Trigger("straggler", good=("run.even",)),
    "gpu.fell_off_bus": LOST,
    "gpu.needs_reset": LOST,
    "gpu.gone": LOST,
    "gpu.not_listed": LOST,
    "memory.soon_full": Trigger("memory", good=("memory.steady",)),
    "gpu.idle": Trigger("gpu_idle", good=("gpu.not_idle",)),
    "job.slow_rank": Trigger("straggler", good=("job.even",)),
    "job.hung_rank": Trigger("hung", good=("job.progress",)),
    "job.silent_node": Trigger("node_silent", good=("job.node_back",), subject="host"),
}
"""By the code of the event."""
GOOD: Mapping[str, frozenset[str]] = {
    **{
        code: frozenset(each.kind for each in TRIGGERS.values() if code in each.good)
        for trigger in TRIGGERS.values()
        for code in trigger.good
    },
    "run.started": frozenset(KINDS),
    "run.restarted": frozenset(KINDS),
    "run.reconnected": frozenset(("ended", "crashed")),
}
"""The kinds that are good again after an event, by its code. A new process begins without alerts."""


def kind_of(what: Fact) -> str:
    """Return the kind of alert that an event is, "" for none."""
    if what.code == "run.exited" and what.fields.get("reason") in NORMAL_ENDS:
        return "ended"
    trigger = TRIGGERS.get(what.code)
    return trigger.kind if trigger is not None else ""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """What a target is sent. `wall` is in seconds since 1970. `run` and `name` are empty for the node's own.

    `gpu` is the index of the GPU that the event concerns. `diagnosis` is what limits the run now.
    """

    kind: str
    what: Fact
    host: str
    wall: float
    level: Level = "warning"
    run: str = ""
    name: str = ""
    restart: int = 0
    step: int | None = None
    gpu: int | None = None
    diagnosis: Diagnosis | None = None


class AlertTarget(msgspec.Struct, frozen=True, kw_only=True):
    """Where alerts go: a webhook or a command.

    `url` and `token` may be secrets. `…_env` names an environment variable that has it, `…_file` a file.
    `headers` are those of a webhook. `command` is a program and its arguments. `number` is its place in the
    configuration, from 1.
    """

    number: int
    type: str
    format: str = "json"
    url: str = ""
    url_env: str = ""
    url_file: str = ""
    token: str = ""
    token_env: str = ""
    token_file: str = ""
    headers: dict[str, str] = {}
    command: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Leave out what may be a secret."""
        return f"AlertTarget({target_label(self)})"

    def __hash__(self) -> int:
        return hash(
            (self.number, self.type, self.format, self.url, self.url_env, self.url_file, self.command)
        )

    @property
    def secret_inside(self) -> bool:
        """Whether the configuration file itself has what may be a secret."""
        return bool(self.url or self.token or self.headers)


def target_label(target: AlertTarget) -> str:
    """Return `webhook 1 (slack)`, `command 2`: a name of a target without secrets."""
    kind = f" ({target.format})" if target.type == "webhook" else ""
    return f"{target.type} {target.number}{kind}"


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """An alert for targets, as the daemon passes it to the program that delivers."""

    alert: Alert
    targets: tuple[AlertTarget, ...]


class Delivered(msgspec.Struct, frozen=True, kw_only=True):
    """How the delivery to the target at a position ended. `problem` is None if it worked."""

    target: int
    problem: Fact | None = None
