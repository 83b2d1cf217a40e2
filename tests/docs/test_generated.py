"""The generated pages have what they are generated from."""

from __future__ import annotations

from typing import get_args

import pytest

from docs._generate import pages
from docs._generate.layout import load
from tests.golden import Golden, sheet


@pytest.mark.parametrize("place", pages.PAGES)
def test_a_generated_page_has_a_title(place: str) -> None:
    text = pages.PAGES[place]()
    assert text.startswith("# ")
    assert "None.None" not in text


def test_each_page_ends_with_what_it_is_generated_from(golden: Golden) -> None:
    golden(sheet({place: made().rstrip().splitlines()[-1] for place, made in pages.PAGES.items()}))


def test_the_command_page_has_every_command_with_its_options() -> None:
    text = pages.cli()
    for name, _, _ in load("cli").COMMANDS:
        assert f"## hoptui {name}\n" in text
    assert "`--dry-run`" in text
    assert "hoptui daemon status" in text


def test_the_page_of_keys_has_every_action_under_its_scope() -> None:
    actions = load("actions")
    text = pages.keys()
    for action in actions.ACTIONS:
        assert f"| `{action.id}` |" in text
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    used = {action.scope for action in actions.ACTIONS}
    assert len(headings) == len(used)
    assert {scope for scope in get_args(actions.Scope) if scope not in pages.SCOPES} == set()


def test_the_page_of_readings_has_every_reading() -> None:
    found = load("readings")
    text = pages.readings()
    for group in (load("gpu_readings").GPU, found.DERIVED, found.HOST, found.PROCESS):
        for reading, meaning in group.items():
            assert f"### `{reading}`" in text
            assert meaning.long in text


def test_the_page_of_messages_has_every_message_and_field() -> None:
    import msgspec

    module = load("messages")
    text = pages.messages()
    for kind in (*get_args(module.FromRun), *get_args(module.ToViewer), *get_args(module.FromViewer)):
        assert f"### {kind.__struct_config__.tag}\n" in text
        for field in msgspec.structs.fields(kind):
            assert f"| `{field.encode_name}` |" in text
    assert "typing." not in text


def test_the_page_of_the_recording_has_every_table_and_view() -> None:
    text = pages.recording()
    for table in ("meta", "boots", "arrivals", "blocks", "layouts", "events", "commands"):
        assert f"## Table `{table}`" in text
    for view in ("event_log", "command_log"):
        assert f"## View `{view}`" in text
    assert "chunks" not in text  # only of an older schema
