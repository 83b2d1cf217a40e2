"""The colours behind the style names of the golden files, in every theme, and a screen in the light theme."""

from __future__ import annotations

from hoptui.tui import preferences
from tests.tui.conftest import Scene
from tests.tui.snapshots import palette
from tests.tui.snapshots.conftest import Golden, Snapshot


def test_inks(golden: Golden) -> None:
    """A changed colour changes one line here. The pictures have only the names."""
    looks = {word: look for word, look in preferences.LOOKS.items() if look.colours}
    styles = {
        word: preferences.inks({**look.theme.to_color_system().generate(), **look.theme.variables})
        for word, look in looks.items()
    }
    lines = ["The style of every ink, and the colours of frames and grounds, in each theme.", ""]
    lines.append(_line("", *looks))
    lines += [
        _line(palette.called(ink), *(str(styles[word][ink]) for word in looks)) for ink in preferences.INKS
    ]
    for kind, variables in (("", palette.FRAMES), ("on ", palette.GROUNDS)):
        for name, variable in variables.items():
            values = (_variable(look, variable) for look in looks.values())
            lines.append(_line(f"{kind}{name or 'background'}", *values))
    golden("\n".join(lines) + "\n")


def test_run_light(snapshot: Snapshot) -> None:
    """The run screen in the light theme."""
    there = Scene(gpus=1).live().history()
    snapshot(there.app(theme="light"), sizes=((120, 40),), themes=("light",))


def _variable(look: preferences.Look, variable: str) -> str:
    return {**look.theme.to_color_system().generate(), **look.theme.variables}[variable].lower()


def _line(*cells: str) -> str:
    return "".join(f"{cell:<20}" for cell in cells).rstrip()
