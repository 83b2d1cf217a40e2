"""A run of two ranks: what is asked of one happens on both, at the same boundary, or on neither."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from hoptui.domain.facts import Fact, fact
from hoptui.sdk.ranks import RankAgreement
from tests.sdk.two_ranks import both


def problems_of(outcome: list[Any]) -> list[tuple[int, str, dict[str, Any]]]:
    """The problems of an outcome that ends in its code and fields: (rank, code, fields)."""
    code, fields = outcome[-2:]
    assert code == "on_ranks"
    return [(one["rank"], one["problem"]["code"], one["problem"]["fields"]) for one in fields["problems"]]


def test_a_knob_changes_on_both_at_the_same_boundary_and_costs_nothing_else() -> None:
    first, second = both(
        """
knob = run.knob("n", 4, min=1, max=64)
quiet = run.boundary(0) and ranks.operations
seen = []
for i in run.iterations(5, start=1):
    if i == 2 and rank == 0:
        command(run, knob="n", value=8)
    seen.append(knob.value)
done = outcomes(run)
report(seen=seen, id=run.id, nonce=run._core.state.nonce, operations=ranks.operations - quiet,
       stages=[o.stage for o in done], took=[o.took_s for o in done],
       knob=run._core.state.declarations.knobs["n"].took_s)
"""
    )
    assert first["seen"] == second["seen"] == [4, 4, 8, 8]
    assert (first["id"], first["nonce"]) == (second["id"], second["nonce"])
    assert first["stages"] == ["applied"]
    assert 0 < first["took"][0] < 1
    assert first["took"][0] == first["knob"]
    assert second["stages"] == []  # rank 0 speaks for the run
    # One flag a boundary, and at the boundary with the command: who wants to stop, the command, two votes.
    assert first["operations"] == second["operations"] == 4 + 4


@pytest.mark.guarantee("rank-fails")
def test_what_fails_on_one_rank_is_undone_on_the_other() -> None:
    first, second = both(
        """
held = []
def put(value):
    held.append(value)
    if rank == 1 and value == 13:
        raise ValueError("unlucky")
knob = run.knob("n", 4, min=1, max=64, apply=put)
if rank == 0:
    run.knob("mine", 1, min=0, max=9)
done = []
for i, asked in enumerate((13, 5)):
    if rank == 0:
        command(run, knob="n", value=asked)
    run.boundary(i)
    done += outcomes(run)
if rank == 0:
    command(run, knob="mine", value=2)
run.boundary(2)
done += outcomes(run)
report(held=held, value=knob.value, version=knob.version,
       state=run._core.state.declarations.knobs["n"].state().took_s,
     done=[[o.stage, o.effective, o.version, o.code, o.fields] for o in done])
"""
    )
    assert first["held"] == second["held"] == [13, 4, 5]
    assert (first["value"], first["version"]) == (second["value"], second["version"]) == (5, 1)
    failed, applied, missing = first["done"]
    assert failed[:3] == ["failed", 4, 0]
    unlucky = {"knob": "n", "value": 13, "error": "unlucky"}
    assert problems_of(failed) == [(1, "setter_failed", unlucky)]
    assert applied == ["applied", 5, 1, "", {}]
    assert missing[0] == "failed"
    assert problems_of(missing) == [(1, "unknown_knob", {"knob": "mine", "known": ["n"]})]


def test_both_wait_for_a_new_process_or_neither_does() -> None:
    first, second = both(
        """
held, seen = 8, []
def check(value):
    if rank == 1 and value == 13:
        raise ValueError("unlucky")
def declare(run):
    run.knob("width", held, min=1, max=64, cost="restart", apply=check, read=lambda: held)
declare(run)
for i, asked in enumerate((13, 16)):
    if rank == 0:
        command(run, knob="width", value=asked)
    run.boundary(i)
    seen.append(run.restart_wanted)
stages, state = [o.stage for o in outcomes(run)], run.state_dict()
run.hand_over("x.ckpt")
held = 16
after = hoptui.connect("two", resume=state, ranks=ranks)
declare(after)
after.boundary(2)
knob = after._core.state.declarations.knobs["width"]
report(seen=seen, stages=stages, done=[[o.stage, o.effective] for o in outcomes(after)], version=knob.version)
"""
    )
    assert first["seen"] == second["seen"] == [{}, {"width": 16}]
    assert (first["stages"], second["stages"]) == (["failed"], [])
    assert (first["done"], second["done"]) == ([["applied", 16]], [])  # rank 0 speaks for the run
    assert first["version"] == second["version"] == 1


def test_a_signal_on_one_rank_stops_all_at_the_same_boundary() -> None:
    first, second = both(
        """
done = []
for i in run.iterations(100):
    if i == 3 and rank == 1:
        run.stop("SIGTERM")
        assert not run.stopping  # not before all have agreed
    done.append(i)
report(done=done, stopping=run.stopping, by=run._core.state.stop_by)
"""
    )
    assert first["done"] == second["done"] == [0, 1, 2, 3]
    assert first["stopping"]
    assert second["stopping"]
    assert first["by"] == second["by"] == "SIGTERM on rank 1"


def test_a_pause_holds_all_ranks_until_it_is_over_by_any_way() -> None:
    first, second = both(
        """
import threading
took = []
def paused(end):
    if rank == 0:
        command(run, "pause", hold_s=0.3 if end == "lease" else 60.0)
        if end != "signal":
            threading.Timer(0.3, lambda: end != "lease" and command(run, end)).start()
    elif end == "signal":
        threading.Timer(0.3, lambda: run.stop("SIGTERM")).start()
    began = time.monotonic()
    going = run.boundary()
    took.append([round(time.monotonic() - began, 1), going, run._core.state.paused_until])
for end in ("resume", "lease", "signal"):
    paused(end)
report(took=took, notes=[note.code for note in run._core.state.notes],
       stages=[o.stage for o in outcomes(run)])
"""
    )
    assert [going for _, going, _ in first["took"]] == [True, True, False]
    for one, other in zip(first["took"], second["took"], strict=True):
        assert one[1:] == other[1:] == [one[1], 0.0]
    assert all(0.2 <= seconds < 10 for seconds, _, _ in (*first["took"], *second["took"]))
    assert first["notes"] == ["pause.expired"]
    assert second["notes"] == []
    assert first["stages"] == ["applied"] * 4


def test_checkpoints_and_traces_begin_on_both() -> None:
    first, second = both(
        """
called = []
run.on_checkpoint(lambda: called.append("save") or (f"/somewhere/{rank}" if rank == 0 else None))
def start(steps):
    called.append(steps)
    if rank == 1 and steps == 7:
        raise RuntimeError("a trace is being taken")
run.on_profile(start)
reasons = []
for ask in (("checkpoint", None), ("profile", 20), ("profile", 7)):
    if rank == 0:
        command(run, ask[0], value=ask[1])
    run.boundary()
    reasons += [[o.stage, o.code, o.fields] for o in outcomes(run)]
report(called=called, reasons=reasons, can=run._core.state.declarations.verbs())
"""
    )
    assert first["called"] == second["called"] == ["save", 20, 7]
    written, tracing, failed = first["reasons"]
    assert written == ["applied", "written", {"path": "/somewhere/0"}]
    assert tracing == ["applied", "tracing", {"iterations": 20}]
    assert failed[0] == "failed"
    assert problems_of(failed) == [(1, "raised", {"error": "RuntimeError: a trace is being taken"})]
    assert first["can"] == ["set", "pause", "resume", "stop", "checkpoint", "profile"]


def test_knobs_that_differ_are_told_once_with_the_rank() -> None:
    first, second = both(
        """
knob = run.knob("n", 4, min=1, max=64)
for i in run.iterations(301):
    if i == 50 and rank == 1:
        knob.revert(3, "only here, which is a mistake")
    if i == 250 and rank == 1:
        knob.revert(4, "mended")
report(notes=[[note.code, note.fields] for note in run._core.state.notes],
       steps=[note.step for note in run._core.state.notes])
"""
    )
    differs = {"knob": "n", "rank": 1, "value": 3, "first": 4}
    assert first["notes"] == [["ranks.differ", {"knobs": [differs], "more": 0}], ["ranks.agree", {}]]
    assert first["steps"] == [100, 300]
    assert second["notes"] == []


@pytest.mark.parametrize("off", ["HOPTUI=off", "a fault of ours"])
def test_a_rank_without_hoptui_still_does_as_the_others(off: str) -> None:
    fault = off != "HOPTUI=off"
    first, second = both(
        f"""
fault = {fault}
knob = run.knob("n", 4, min=1, max=64)
if fault and rank == 1:
    def broken():
        raise RuntimeError("planted")
    run._core.recorder._stamp = broken
for i in run.iterations(6):
    if i == 2 and rank == 0:
        command(run, knob="n", value=9)
    if i == 4 and rank == 1:
        run.stop()
run.close()
report(value=knob.value, step=run.step, alive=run._core.state.alive)
"""
    )
    assert (first["value"], first["step"]) == (second["value"], second["step"]) == (9, 5)
    assert ("planted" in second["stderr"]) is fault


def test_when_the_ranks_cannot_talk_hoptui_goes_and_training_stays() -> None:
    first, second = both(
        """
knob = run.knob("n", 4, min=1, max=64)
done = []
for i in run.iterations(6):
    if i == 3:
        ranks._peer.shutdown(2)
    if i == 4 and rank == 0:
        command(run, knob="n", value=9)
    done.append(i)
run.stop()
report(done=done, alive=run._core.state.alive, value=knob.value, stopping=run.stopping)
"""
    )
    for one in (first, second):
        assert one["done"] == [0, 1, 2, 3, 4, 5]
        assert (one["alive"], one["value"], one["stopping"]) == (False, 4, True)
        assert one["stderr"].count("its ranks can no longer agree") == 1


def test_problems_are_told_with_their_ranks() -> None:
    class Given:
        rank, world = 0, 5

        def __init__(self, *errors: str) -> None:
            self.facts = [msgspec.to_builtins(raised(error)) for error in errors]

        def all(self, ok: bool) -> bool:
            return not any(self.facts)

        def share(self, payload: bytes | None) -> bytes:
            return payload or b""

        def gather(self, value: object) -> list[object]:
            return self.facts

    def raised(error: str) -> Fact | None:
        return fact("raised", error=error) if error else None

    assert RankAgreement(Given("", "", "", "", "")).problem(None) is None
    assert RankAgreement(Given(*["no"] * 5)).problem(raised("no")) == raised("no")
    found = RankAgreement(Given("", "a", "b", "c", "d")).problem(None)
    assert found is not None
    assert problems_of([found.code, found.fields]) == [
        (rank, "raised", {"error": error}) for rank, error in ((1, "a"), (2, "b"), (3, "c"))
    ]
    assert found.fields["more"] == 1
