"""What the screen of a run on several nodes looks like."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from tests.tui.conftest import RUN, Scene

Snapshot = Callable[..., None]


def test_job_small(snapshot: Snapshot) -> None:
    """Two nodes with two ranks each: one rank is slow, one GPU too hot."""
    snapshot(Scene(gpus=1).live().job(2, 2).app(), "J", "down")


def test_job_large(snapshot: Snapshot) -> None:
    """64 nodes with eight ranks each: one is silent, one has never reported, one rank is slow."""
    snapshot(Scene(gpus=1).live().job(64, 8, first=110).app(), "J")


def test_job_over_time(snapshot: Snapshot) -> None:
    """Ranks × time on a small terminal, by power."""
    there = Scene(gpus=1).live().job(8, 4, first=30)
    snapshot(there.app(), "J", "m", "m", "m", "m", "tab", sizes=((80, 24),))


def test_job_in_ascii(snapshot: Snapshot) -> None:
    """Without Unicode, and without colours: shades are characters."""
    there = Scene(gpus=1).live().job(10, 2, first=80)
    snapshot(there.app(theme="none", plain=True), "J", themes=("none",))


def test_job_that_is_not_read_any_more(snapshot: Snapshot) -> None:
    """The store of the job does not answer: all is as it was last, and the screen says so."""
    there = Scene(gpus=1).live().job(2, 2)
    state = there.client.store.jobs[RUN]
    gone = structs.replace(state, store_problem="connection reset by peer", age_s=42.0)
    there.client.store.apply_job(RUN, gone)
    snapshot(there.app(), "J", sizes=((80, 24),))
