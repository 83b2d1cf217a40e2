"""What a person types for a place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoptui.client.target import BadPlace, Place, parse


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


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("ssh://", "names no host"),
        ("ssh:///ppo", "names no host"),
        ("ssh://ana@/ppo", "names no host"),
        ("ssh://ana:secret@gpu07", "password"),
        ("ssh://-oProxyCommand=x", "is no host's name"),
        ("ssh://-x@gpu07", "is no user's name"),
        ("ssh://@gpu07", "is no user's name"),
        ("ssh://gpu 07", "is no host's name"),
        ("ssh://gpu07:x", "'x' is no port"),
        ("ssh://gpu07:0", "'0' is no port"),
        ("ssh://gpu07:65536", "is no port"),
        ("ssh://::1", "stands in brackets"),
        ("ssh://[::1]x", "nothing but a port"),
        ("local/", "names no run"),
    ],
)
def test_what_is_no_place_is_one_sentence(typed: str, words: str) -> None:
    with pytest.raises(BadPlace, match=r".") as told:
        parse(typed)
    assert words in str(told.value)
    assert "secret" not in str(told.value)


@given(st.text(max_size=40))
def test_nothing_that_is_typed_becomes_an_option_of_ssh(typed: str) -> None:
    try:
        place = parse(f"ssh://{typed}")
    except BadPlace:
        return
    assert not place.host.startswith("-")
    assert not place.destination.startswith("-")
    assert not any(c.isspace() for c in place.destination)
