"""The commands of a run as people search them and give them again."""

from __future__ import annotations

import shlex

import pytest
from msgspec import structs

from hoptui.domain.knobs import KnobValue
from hoptui.domain.tuning import Measured
from hoptui.model.command_history import ENDED, Filter, again, command_line, left, named, newest_first, reason
from hoptui.protocol.authors import author_word
from hoptui.protocol.messages import Origin
from tests import factories

ANA = factories.change("a", why="more work", seq=1)
TUNER = factories.change(
    "t", knob="lr", before=1e-3, wanted=3e-4, effective=3e-4, origin=Origin(kind="tuner", user="ana"), seq=2
)
REFUSED = factories.change(
    "r", stage="rejected", reason="out of bounds", origin=Origin(user="Bo", pid=5), seq=3
)
PAUSE = factories.change("p", verb="pause", knob="", wall=2_000_000.0, seq=0)
ALL = (ANA, TUNER, REFUSED, PAUSE)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("", "atrp"),
        ("grad_accum", "ar"),
        ("LR", "t"),
        ("grad_accum bounds", "r"),
        ("more work", "a"),
        ("pause", "p"),
        ("by:ana", "ap"),
        ("by:bo", "r"),
        ("by:tuner", "t"),
        ("stage:rej", "r"),
        ("stage:applied by:ana accum", "a"),
        ("stage:rejected stage:applied by:bo", ""),
        ("nothing like it", ""),
    ],
)
def test_a_filter_keeps_what_is_asked_for(typed: str, found: str) -> None:
    wanted = Filter.parse(typed)
    assert "".join(record.id for record in ALL if wanted.wants(record)) == found


def test_a_filter_is_written_as_it_is_typed() -> None:
    assert str(Filter.parse("  Lr by:ana  stage:applied x ")) == "lr x stage:applied by:ana"
    assert str(Filter()) == ""
    assert Filter.parse("") == Filter()


def test_an_effect_that_is_shared_is_not_what_a_command_is_about() -> None:
    shared = factories.change(measured=Measured(gain=0.1, interval=0.01, note="together with lr"))
    assert not Filter.parse("lr").wants(shared)


def test_the_newest_is_on_top() -> None:
    assert [record.id for record in newest_first(ALL)] == ["p", "r", "t", "a"]
    assert [record.id for record in newest_first(ALL, Filter.parse("by:ana"))] == ["p", "a"]


def test_a_person_is_one_word() -> None:
    assert author_word(Origin(user="Ana B\n")) == "ana_b"
    assert author_word(Origin()) == "somebody"
    assert author_word(Origin(kind="daemon")) == "daemon"


@pytest.mark.parametrize(
    ("knob", "value", "typed"),
    [
        ("num_envs", 2048, "num_envs=2048"),
        ("lr", 0.1 + 0.2, "lr=0.30000000000000004"),
        ("lr", 3e-4, "lr=0.0003"),
        ("compile", True, "compile=on"),
        ("note", "it's $HOME", "note=it's $HOME"),
    ],
)
def test_a_change_can_be_typed_again_exactly(knob: str, value: KnobValue, typed: str) -> None:
    line = again(factories.change(knob=knob, wanted=value), "my run")
    assert shlex.split(line) == ["hoptui", "set", "my run", typed]


def test_other_commands_can_be_typed_again() -> None:
    assert again(PAUSE, "ppo") == "hoptui pause ppo"
    assert (
        again(factories.change(verb="profile", knob="", wanted=20), "ppo") == "hoptui profile ppo --steps 20"
    )
    options = {"warmup": 2, "stacks": True, "shapes": False}
    assert (
        again(factories.change(verb="profile", knob="", wanted=20, options=options), "ppo")
        == "hoptui profile ppo --steps 20 --warmup 2 --stacks --no-shapes"
    )


def test_the_reason_of_an_undo_names_the_change() -> None:
    undo = factories.change("u", why="undo of t")
    assert reason(undo, {"t": TUNER}) == "undo of lr 1.0e-3 → 3.0e-4"
    assert reason(undo, {}) == "undo of t"
    assert reason(ANA, {}) == "more work"
    assert reason(PAUSE, {}) == ""


def test_nothing_of_a_command_line_comes_from_control_characters() -> None:
    assert again(factories.change(knob="a\x1b]52;c;x\x07", wanted="\x9b2J\n"), "r\x00un").isprintable()


def test_a_run_is_named_by_its_id_where_its_name_is_not_enough() -> None:
    one, other = factories.run("abcd2345", "ppo"), factories.run("eeee5555", "ppo")
    assert named(one, factories.node(one, factories.run("ffff6666", "lm"))) == "ppo"
    assert named(one, None) == "ppo"
    assert named(one, factories.node(one, other)) == "abcd2345"
    dashed = factories.run("abcd2345", "-x")
    assert named(dashed, factories.node(dashed)) == "abcd2345"
    for name in ("", "a\x1b[2Jb", "long " * 100):
        odd = factories.run("abcd2345", name)
        assert named(odd, factories.node(odd)) == "abcd2345"


@pytest.mark.parametrize(
    "name", ["my run", "a; rm -rf ~", "it's", '$(id) `id` "x"', "a\\b", "bêta", "*", "#a"]
)
def test_a_line_to_be_typed_gives_the_shell_nothing_but_words(name: str) -> None:
    run = factories.run("abcd2345", name)
    line = command_line("set", named(run, factories.node(run)), "lr=1 2")
    assert shlex.split(line, comments=True) == ["hoptui", "set", name, "lr=1 2"]


def test_no_measurement_goes_on_after_the_run() -> None:
    figure = Measured(gain=0.1, interval=0.4, iterations=15, until=90)
    unknown = Measured(iterations=7)
    ended = [left(factories.change(measured=found)).measured for found in (figure, unknown, None)]
    assert ended == [
        structs.replace(figure, until=0),
        structs.replace(unknown, settled=True, note=ENDED),
        None,
    ]
    final = factories.change(measured=structs.replace(figure, settled=True))
    assert left(final) == final
