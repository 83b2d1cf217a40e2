"""What limits a run, in `hoptui status` and `hoptui watch`."""

from __future__ import annotations

import json

import msgspec
from msgspec import structs

from hoptui.domain.columns import pack
from hoptui.domain.diagnosis import Advice, Diagnosis
from hoptui.domain.facts import fact
from hoptui.protocol.messages import Vital
from tests import factories
from tests.cli.conftest import Hoptui
from tests.client.fake_daemon import FakeDaemon
from tests.golden import Golden

CHANGE = "grad_accum 4 → 2"
FEWER_PIECES = fact("advice.knob", knob="grad_accum", before=4, value=2, effect="speed", cost="free")
FOUND = Diagnosis(
    verdict="launch-bound",
    confidence=0.95,
    facts=(fact("gpu.sm_active", share=0.056), fact("gpu.any_kernel", share=0.32)),
    advice=(Advice(knob="grad_accum", direction="down", value=2, fact=FEWER_PIECES),),
    seconds=20.0,
    t=9,
)  # fmt: skip


def diagnosed(daemon: FakeDaemon, found: Diagnosis, **fields: object) -> None:
    run = structs.replace(factories.run("dddd4444", "small", **fields), diagnosis=found)
    daemon.add(run, Vital(state="exited" if fields else "live", step=7, last_t=daemon.now), {"loss": 0.5})


def test_status_says_what_limits_a_run(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    diagnosed(ppo, FOUND)
    assert hoptui("status", "small").code == 0
    golden(hoptui.transcript())


def test_status_says_what_is_missing(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    missing = fact("gpu.no_readings", problem=fact("recorded", text="no driver"))
    diagnosed(ppo, Diagnosis(facts=(missing, fact("phase.largest", phase="update", share=0.61))))
    assert hoptui("status", "small").code == 0
    golden(hoptui.transcript())
    assert "limits" not in hoptui("status", "ppo").out


def test_status_of_a_run_that_is_over_advises_nothing(
    hoptui: Hoptui, ppo: FakeDaemon, golden: Golden
) -> None:
    diagnosed(ppo, FOUND, exit_reason="finished", exited_wall=1e6)
    ended = hoptui("status", "small")
    assert "launch-bound" in ended.out
    assert CHANGE not in ended.out
    golden(hoptui.transcript())


def test_status_json(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    diagnosed(ppo, FOUND)
    assert hoptui("status", "small", "--json").json["diagnosis"] == {
        "verdict": "launch-bound",
        "confidence": 0.95,
        "facts": [
            {"code": "gpu.sm_active", "fields": {"share": 0.056}},
            {"code": "gpu.any_kernel", "fields": {"share": 0.32}},
        ],
        "evidence": ["SM active 5.6 %", "busy 32 %"],
        "advice": [
            {
                "knob": "grad_accum",
                "direction": "down",
                "value": 2,
                "fact": msgspec.to_builtins(FEWER_PIECES),
                "text": "grad_accum 4 → 2 (takes effect at once)",
            }
        ],
        "seconds": 20.0,
        "t": 9,
        "stale": False,
    }
    assert hoptui("status", "ppo", "--json").json["diagnosis"] is None


def test_watch_tells_a_verdict_once(hoptui: Hoptui, ppo: FakeDaemon, golden: Golden) -> None:
    run = structs.replace(ppo.node.runs[0], diagnosis=FOUND)
    ppo.node = structs.replace(ppo.node, runs=(run,))
    ppo.vitals["abcd2345"] = Vital(state="live", step=1, last_t=0)
    rows = [(i * 10**9, i, {"loss": 0.1 * i}) for i in range(1, 4)]
    ppo.columns = [pack("run/abcd2345", rows)]

    def end(message: object) -> None:
        if len(ppo.received) > 4:
            gone = structs.replace(run, exit_reason="finished")
            ppo.node = structs.replace(ppo.node, runs=(gone,))
            ppo.vitals["abcd2345"] = Vital(state="exited", step=3)

    ppo.answer = end
    lines = hoptui("watch", "ppo", "--every", "0").out.splitlines()
    verdicts = [line for line in lines if "launch-bound" in line]
    assert len(verdicts) == 1
    assert CHANGE in verdicts[0]
    golden(f"{verdicts[0].partition('  ')[2]}\n")


def test_watch_does_not_tell_that_nothing_is_known(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    diagnosed(ppo, Diagnosis(facts=(fact("gpu.none_of_run"),)), exit_reason="finished", exited_wall=1e6)
    assert len(hoptui("watch", "small").out.splitlines()) == 1


def test_watch_advises_nothing_for_a_run_that_is_over(
    hoptui: Hoptui, ppo: FakeDaemon, golden: Golden
) -> None:
    diagnosed(ppo, structs.replace(FOUND, stale=True), exit_reason="finished", exited_wall=1e6)
    ended = hoptui("watch", "small")
    assert "launch-bound" in ended.out
    assert CHANGE not in ended.out
    golden(hoptui.transcript())


def test_watch_json_has_it_in_every_row(hoptui: Hoptui, ppo: FakeDaemon) -> None:
    diagnosed(ppo, FOUND, exit_reason="finished", exited_wall=1e6)
    (row,) = hoptui("watch", "small", "--json").out.splitlines()
    assert json.loads(row)["diagnosis"]["verdict"] == "launch-bound"
