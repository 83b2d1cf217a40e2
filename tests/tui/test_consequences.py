"""What a value would imply: only what was declared or measured, and unknown where neither is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from hoptui.domain.columns import pack
from hoptui.domain.knobs import KnobState
from hoptui.tui.components import knobs
from hoptui.tui.snapshot import View
from tests import factories
from tests.golden import Golden, sheet

MakeScene = Callable[..., Any]
RUN = "3f2a9c10"
SECOND = 1_000_000_000


def look(scene: Any, *knobs: KnobState, **run: Any) -> View:
    if knobs or run:
        scene.update(run={"knobs": knobs or scene.run.knobs, **run})
    store = scene.client.store
    wall = (scene.client.ns + scene.node.wall_offset_ns) / SECOND
    return View(store, scene.client.link, store.run(RUN), store.vital(RUN), store.now(), wall, 0.0)


def kept(view: View, knob: KnobState, wanted: Any) -> str:
    """What the one thing that the knob keeps is said to be."""
    return "; ".join(text for label, text in knobs.declared(view, knob, wanted, 80) if label == "keeps")


def said(line: Any) -> str:
    return "".join(span.text for span in line)


MICRO = factories.knob("micro_batch", 16, keeps="grad_accum × micro_batch", cost="shape")
ACCUM = factories.knob("grad_accum", 4, keeps="grad_accum × micro_batch", cost="shape")


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (None, "64 = grad_accum × micro_batch"),
        (16, "64 = grad_accum × micro_batch"),
        (8, "64 = grad_accum × micro_batch: grad_accum 4 → 8"),
        (64, "64 = grad_accum × micro_batch: grad_accum 4 → 1"),
        (12, "64 = grad_accum × micro_batch: grad_accum 4 → about 5.3"),
        (0, "64 = grad_accum × micro_batch"),
    ],
)
def test_what_follows_from_a_declared_product(scene: MakeScene, wanted: int | None, text: str) -> None:
    assert kept(look(scene().live(), MICRO, ACCUM), MICRO, wanted) == text


def test_the_ranks_of_a_run_may_be_a_factor(scene: MakeScene) -> None:
    keeps = "micro_batch * grad_accum * ranks"
    micro, accum = (
        factories.knob("micro_batch", 16, keeps=keeps),
        factories.knob("grad_accum", 4, keeps=keeps),
    )
    view = look(scene().live(), micro, accum, world=8)
    assert kept(view, micro, 32) == f"512 = {keeps}: grad_accum 4 → 2"


def test_the_knob_with_the_same_invariant_is_the_one_that_follows(scene: MakeScene) -> None:
    keeps = "micro_batch × grad_accum × ranks × seq_len"
    micro, accum = (
        factories.knob("micro_batch", 16, keeps=keeps),
        factories.knob("grad_accum", 4, keeps=keeps),
    )
    view = look(scene().live(), micro, accum, factories.knob("seq_len", 1024), world=8)
    assert kept(view, micro, 32) == f"524 288 = {keeps}: grad_accum 4 → 2"


@pytest.mark.parametrize(
    ("keeps", "text"),
    [
        ("the size of a minibatch", "the size of a minibatch"),
        ("micro_batch × gone", "micro_batch × gone"),
        ("micro_batch × precision", "micro_batch × precision"),
        ("grad_accum", "4 = grad_accum"),
        ("micro_batch × grad_accum × ranks", "64 = micro_batch × grad_accum × ranks: grad_accum 4 → 2"),
        ("micro_batch × grad_accum × epochs", "640 = micro_batch × grad_accum × epochs"),
        ("", ""),
    ],
)
def test_nothing_is_invented_where_figures_do_not_follow(scene: MakeScene, keeps: str, text: str) -> None:
    micro = factories.knob("micro_batch", 16, keeps=keeps)
    others = (
        factories.knob("grad_accum", 4),
        factories.knob("precision", "bf16"),
        factories.knob("epochs", 10),
    )
    assert kept(look(scene().live(), micro, *others), micro, 32) == text


ROLLOUT = "rollout = num_envs × rollout_len × ranks"
PIECE = "micro-batch = minibatch_size / grad_accum / ranks"
PPO = (
    factories.knob("num_envs", 64, keeps=ROLLOUT),
    factories.knob("rollout_len", 8, keeps=ROLLOUT),
    factories.knob("minibatch_size", 512, keeps=PIECE),
    factories.knob("grad_accum", 2, keeps=f"minibatch_size; {PIECE}"),
)


@pytest.mark.parametrize(
    ("index", "wanted", "told"),
    [
        (0, None, [("implies", "rollout 1 024 = num_envs × rollout_len × ranks")]),
        (0, 128, [("implies", "rollout 1 024 → 2 048 = num_envs × rollout_len × ranks")]),
        (1, 8, [("implies", "rollout 1 024 = num_envs × rollout_len × ranks")]),
        (2, 256, [("implies", "micro-batch 128 → 64 = minibatch_size / grad_accum / ranks")]),
        (
            3,
            4,
            [
                ("keeps", "512 = minibatch_size"),
                ("implies", "micro-batch 128 → 64 = minibatch_size / grad_accum / ranks"),
            ],
        ),
        (
            3,
            3,
            [
                ("keeps", "512 = minibatch_size"),
                ("implies", "micro-batch 128 → about 85 = minibatch_size / grad_accum / ranks"),
            ],
        ),
        (
            3,
            0,
            [
                ("keeps", "512 = minibatch_size"),
                ("implies", "micro-batch 128 = minibatch_size / grad_accum / ranks"),
            ],
        ),
        (
            3,
            "x",
            [
                ("keeps", "512 = minibatch_size"),
                ("implies", "micro-batch 128 = minibatch_size / grad_accum / ranks"),
            ],
        ),
    ],
)
def test_what_follows_from_the_sizes_of_ppo(
    scene: MakeScene, index: int, wanted: Any, told: list[tuple[str, str]]
) -> None:
    view = look(scene().live(), *PPO, world=2)
    assert knobs.declared(view, PPO[index], wanted, 80) == told


def test_a_formula_gives_way_to_its_figures(scene: MakeScene) -> None:
    view = look(scene().live(), *PPO)
    assert knobs.declared(view, PPO[0], 128, 40) == [("implies", "rollout 512 → 1 024")]
    view = look(scene().live(), MICRO, ACCUM)
    told = [knobs.declared(view, MICRO, 8, width)[0][1] for width in (50, 37, 19)]
    assert told == [
        "64 = grad_accum × micro_batch: grad_accum 4 → 8",
        "64: grad_accum 4 → 8",
        "grad_accum 4 → 8",
    ]


@pytest.mark.parametrize(
    "keeps", ["size = num_envs / gone", "size = num_envs / none", "size = none", "size ="]
)
def test_nothing_is_said_to_follow_from_what_is_not_known(scene: MakeScene, keeps: str) -> None:
    envs = factories.knob("num_envs", 64, keeps=keeps)
    assert knobs.declared(look(scene().live(), envs, factories.knob("none", 0)), envs, 128, 80) == [
        ("implies", keeps)
    ]


def test_a_knob_that_allocates_nothing_needs_no_memory(scene: MakeScene) -> None:
    there = scene(gpus=1).live()
    free = factories.knob("lr", 1e-3)
    assert knobs.memory(look(there, free), free, 2e-3) == ()


def test_without_gpus_memory_is_unknown(scene: MakeScene, golden: Golden) -> None:
    golden([said(knobs.memory(look(scene().live(), MICRO), MICRO, 32))])


def test_a_forecast_is_what_was_measured_with_that_very_value(scene: MakeScene, golden: Golden) -> None:
    there = scene(gpus=1).live()
    view = look(there, MICRO)
    shown = {"nothing measured, 32": said(knobs.memory(view, MICRO, 32))}
    # 64 for a minute, then 32 for a minute, now 16
    there.record(id="a", ago_s=120.0, knob="micro_batch", before=64, wanted=32, effective=32, version=1)
    there.record(id="b", ago_s=60.0, knob="micro_batch", before=32, wanted=16, effective=16, version=2)
    rows = [
        (
            there.client.ns - ago * SECOND,
            -1,
            {"gpu_memory_bytes": float(held << 30), "memory_headroom_bytes": float(5 << 30)},
        )
        for ago, held in ((150, 70), (100, 40), (80, 44), (30, 12), (0, 12))
    ]
    there.tell(columns=(pack(f"derived/{RUN}", rows),))
    view = look(there, MICRO)
    assert knobs.held_with(view, MICRO, 64) == 70 << 30
    assert knobs.held_with(view, MICRO, 32) == 44 << 30
    assert knobs.held_with(view, MICRO, 128) is None
    for value in (32, 128, 16):
        shown[f"32 and 64 measured, {value}"] = said(knobs.memory(view, MICRO, value))
    golden(sheet(shown))


def test_what_another_epoch_held_says_nothing_of_this_one(scene: MakeScene) -> None:
    there = scene(gpus=1).live()
    there.record(id="a", ago_s=120.0, epoch=1, knob="micro_batch", before=64, wanted=16, effective=16)
    row = {"gpu_memory_bytes": float(70 << 30)}
    there.tell(columns=(pack(f"derived/{RUN}", [(there.client.ns - 150 * SECOND, -1, row)]),))
    view = look(there, MICRO, epoch=2)
    assert knobs.held_with(view, MICRO, 64) is None


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ({"effect": "speed"}, False),
        ({"effect": "speed", "cost": "shape"}, False),
        ({"effect": "learning"}, True),
        ({"effect": "speed", "cost": "rebuild"}, True),
        ({"effect": "speed", "cost": "restart"}, True),
    ],
)
def test_what_costs_more_than_a_step_is_asked_about(spec: dict[str, Any], asked: bool) -> None:
    assert knobs.must_ask(factories.knob("k", 1, **spec).spec) is asked


def test_consequences_are_told_once_each(golden: Golden) -> None:
    lr, clip = factories.knob("lr", 1e-3), factories.knob("clip", 0.2)
    precision = factories.knob("precision", "bf16", effect="speed", cost="rebuild")
    width = factories.knob("d_model", 64, cost="restart")
    told = knobs.consequences([lr, clip, precision, width])
    slow = structs.replace(precision, took_s=2.5)
    golden(sheet({"four knobs": told, "one that took 2.5 s": knobs.consequences([slow])}))
