"""Send a verb to a run and wait for its outcome. The run executes it between two iterations."""

from __future__ import annotations

from hoptui.cli.support.outcomes import Given, follow
from hoptui.cli.support.snapshot import NodeSnapshot
from hoptui.cli.support.terminal import usage
from hoptui.domain.knobs import KnobValue
from hoptui.presentation import numbers
from hoptui.protocol.messages import RunState, Verb

TIMEOUT_S = 600.0


def send_verb(
    seen: NodeSnapshot,
    run: RunState,
    verb: Verb,
    timeout: float,
    *,
    hold_s: float = 60.0,
    value: KnobValue | None = None,
) -> int:
    """Send a verb to a run, report its outcome, and return the exit code.

    Raises:
        Fail: the timeout is not positive.
    """
    if not timeout > 0:
        raise usage(f"--timeout must be more than 0 seconds, not {timeout:g}")
    command = seen.session.submit(run, verb, hold_s=hold_s, value=value)
    code, _ = follow(seen.session, [Given(command, f"{verb} {numbers.clean(run.name)}")], timeout_s=timeout)
    return code
