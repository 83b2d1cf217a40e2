"""What training achieves: the return or the loss, and the metrics beside it."""

from __future__ import annotations

from hoptui.presentation import numbers
from hoptui.tui.components import empty_state
from hoptui.tui.components.figures import VALUE, fact, label_of, number
from hoptui.tui.snapshot import View
from hoptui.tui.styled_text import Line, Span, pack

FIRST = (
    "episode_return", "return", "reward", "accuracy", "validation_loss", "loss", "train_loss", "policy_loss",
)  # fmt: skip
_COUNTS = ("env_steps", "samples", "tokens", "episodes", "lr", "iteration_s")


def metrics(view: View) -> list[str]:
    """What the learning chart can show, the most telling first: no phases, rates or counts."""
    names = [
        name
        for name in view.store.names(view.source)
        if not name.startswith("phase/")
        and not name.endswith(("_per_s", "_total"))
        and name not in _COUNTS
        and (not view.run or name != view.run.headline)
    ]
    first = [name for name in FIRST if name in names]
    return first + [name for name in names if name not in first]


def lines(view: View, chosen: str, width: int) -> list[Line]:
    """The chosen metric, then as many others as fit in a line; what to do where the run has logged nothing."""
    if view.run is None:
        return [empty_state.line(view, "looking for the run"), ()]
    if not chosen:
        return [
            (Span("nothing is logged yet", "dim"),),
            (Span("run.log(loss=…) in its loop is shown here", "faint"),),
        ]
    latest = view.store.latest(view.source)
    unit = numbers.clean(view.run.units.get(chosen, ""), 16) if view.run else ""
    head: Line = (Span(number(latest.get(chosen)), "strong"), Span(f" {unit or label_of(chosen)}", "dim"))
    evaluation = latest.get("evaluation_return")
    if evaluation is not None and chosen != "evaluation_return":
        head = (*head, Span("   evaluation ", "dim"), Span(number(evaluation), "", VALUE))
    shown = (chosen, "evaluation_return")
    others = [
        fact(label_of(name), number(latest.get(name)), VALUE) for name in metrics(view) if name not in shown
    ]
    return [head, next(iter(pack(others, width, "  ")), ())]
