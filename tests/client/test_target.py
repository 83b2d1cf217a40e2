"""What a person types for a place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptui.client.target import BadPlace, Place, is_path, parse
from tests.golden import Golden, sheet


@pytest.mark.parametrize(
    ("typed", "place", "name"),
    [
        ("ppo", Place(run="ppo"), "local"),
        ("local", Place(), "local"),
        ("local/ppo", Place(run="ppo"), "local"),
        ("local/old.hoptui", Place(run="local/old.hoptui"), "local"),
        ("ssh://gpu07", Place("gpu07"), "gpu07"),
        ("SSH://GPU_07/", Place("GPU_07"), "GPU_07"),
        ("ssh://ana@gpu07:2222/ppo", Place("gpu07", "ana", 2222, "ppo"), "ana@gpu07:2222"),
        ("ssh://ana@lab@gpu07/a%20b/c", Place("gpu07", "ana@lab", None, "a b/c"), "ana@lab@gpu07"),
        ("ssh://[2001:db8::7]:22/ppo", Place("2001:db8::7", "", 22, "ppo"), "[2001:db8::7]:22"),
        ("ssh://[::1]", Place("::1"), "::1"),
    ],
)
def test_places(typed: str, place: Place, name: str) -> None:
    found = parse(typed)
    assert found == place
    assert found.name == name
    assert found.remote == (found.host != "")
    assert found.node == place._replace(run="")


def test_targets_with_slashes_are_no_recordings() -> None:
    assert is_path("runs/old.hoptui")
    assert is_path("runs/old")
    assert not any(map(is_path, ("ppo", "ssh://gpu07/ppo", "slurm:12/gpu07/ppo")))


def test_what_is_no_place_is_one_sentence(golden: Golden) -> None:
    hosts = ("ssh://", "ssh:///ppo", "ssh://ana@/ppo", "ssh://-oProxyCommand=x", "ssh://gpu 07")
    users = (
        "ssh://ana:secret@gpu07",
        "ssh://ana:x/secret@gpu",
        "ssh://ana:secret:x/@gpu07",
        "ssh://an@:secret@gpu",
        "ssh://-x@gpu07",
        "ssh://@gpu07",
    )
    ports = ("ssh://gpu07:x", "ssh://gpu07:0", "ssh://gpu07:65536", "ssh://::1", "ssh://[::1]x")
    problems = {}
    for typed in (*hosts, *users, *ports, "local/"):
        with pytest.raises(BadPlace) as told:
            parse(typed)
        problems[typed] = str(told.value)
        assert "secret" not in str(told.value)
    golden(sheet(problems))


@given(st.text(max_size=40))
def test_nothing_that_is_typed_becomes_an_option_of_ssh(typed: str) -> None:
    try:
        place = parse(f"ssh://{typed}")
    except BadPlace:
        return
    assert not place.host.startswith("-")
    assert not place.destination.startswith("-")
    assert not any(c.isspace() for c in place.destination)
