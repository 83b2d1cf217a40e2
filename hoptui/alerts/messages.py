"""An alert in words, as JSON, and in the formats of webhooks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from hoptui.domain.alerts import SUPPRESSED, TEST, Alert
from hoptui.presentation import diagnosis, numbers, sentences

TITLES: Mapping[str, str] = {
    "ended": "ended",
    "crashed": "crashed",
    "hung": "hangs",
    "nan": "has a number that is NaN or infinite",
    "straggler": "has a slow rank",
    "gpu_lost": "GPU lost",
    "memory": "is soon out of memory",
    "gpu_idle": "leaves GPUs idle",
    "node_silent": "has a silent node",
    SUPPRESSED: "more alerts are suppressed",
    TEST: "test alert",
}
"""What happened, after the name of the run, by the kind of alert."""
LONGEST_NAME = 60
MOST_CHARACTERS = 1800
"""Discord refuses a message of more than 2000."""


class Request(NamedTuple):
    """The body of a webhook's request, and its headers."""

    body: bytes
    headers: dict[str, str]


def title(alert: Alert) -> str:
    """Return `ppo: crashed (node7)`."""
    what = TITLES.get(alert.kind, alert.kind)
    name = numbers.clean(alert.name or alert.run, LONGEST_NAME)
    return f"{f'{name}: ' if name else ''}{what} ({numbers.clean(alert.host, LONGEST_NAME)})"


def text(alert: Alert) -> str:
    """Return the event, where it happened, and what limits the run, one on each line."""
    event = sentences.sentence(alert.what)
    lines = [f"GPU {alert.gpu}: {event}" if alert.gpu is not None else event]
    if alert.run:
        at = f", iteration {numbers.grouped(alert.step)}" if alert.step is not None else ""
        after = f", restart {alert.restart}" if alert.restart else ""
        lines.append(f"run {alert.run}{after}{at}")
    if alert.diagnosis is not None:
        lines.append(f"diagnosis: {diagnosis.line(alert.diagnosis)}")
    return "\n".join(numbers.clean(line, 600) for line in lines)


def as_json(alert: Alert) -> bytes:
    """Return the alert as one JSON object, with its sentences. Numbers that are not finite become null."""
    found: dict[str, Any] = {
        "kind": alert.kind,
        "title": title(alert),
        "text": text(alert),
        "level": alert.level,
        "host": alert.host,
        "wall": alert.wall,
        "run": alert.run or None,
        "name": alert.name or None,
        "restart": alert.restart if alert.run else None,
        "iteration": alert.step,
        "gpu": alert.gpu,
        "code": alert.what.code,
        "fields": alert.what.fields,
        "diagnosis": None,
    }
    if alert.diagnosis is not None:
        found["diagnosis"] = {
            "verdict": alert.diagnosis.verdict,
            "confidence": alert.diagnosis.confidence,
            "text": diagnosis.line(alert.diagnosis),
            "facts": alert.diagnosis.facts,
        }
    return msgspec.json.encode(found)


def _generic(alert: Alert) -> Request:
    return Request(as_json(alert), {"Content-Type": "application/json"})


def _ntfy(alert: Alert) -> Request:
    """The text as the body. A header of ASCII cannot carry every title: JSON in a header would be quoted."""
    words = title(alert).encode("ascii", "replace").decode()
    priority = "default" if alert.level == "info" else "high"
    headers = {"Title": words, "Priority": priority, "Tags": alert.kind, "Content-Type": "text/plain"}
    return Request(text(alert).encode(), headers)


def _slack(alert: Alert) -> Request:
    words = f"{title(alert)}\n{text(alert)}"[:MOST_CHARACTERS]
    for sign, escape in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        words = words.replace(sign, escape)
    return _of({"text": words})


def _discord(alert: Alert) -> Request:
    words = f"{title(alert)}\n{text(alert)}"[:MOST_CHARACTERS]
    return _of({"content": words, "allowed_mentions": {"parse": []}})


def _of(body: Mapping[str, object]) -> Request:
    return Request(json.dumps(body).encode(), {"Content-Type": "application/json"})


FORMATS: Mapping[str, Callable[[Alert], Request]] = {
    "json": _generic,
    "ntfy": _ntfy,
    "slack": _slack,
    "discord": _discord,
}
"""By the `format` of a webhook."""
