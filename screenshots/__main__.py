"""`make screenshots`: the dashboard's pictures in two sizes, from the recording of a real run on an H100 in `examples/`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from hoptui.tui.replay import ReplayApp
from hoptui.viewer.replay import Replay
from screenshots.picture import NoFontError, png

HERE = Path(__file__).parent
RECORDING = HERE.parent / "examples" / "ppo-h100.hoptui"
SIZES = ((120, 40), (80, 24))
THEME = "hoptui-dark"
AT = "95%"
"""The moment shown: all knobs have been turned, the run goes on."""


async def shoot(name: str, size: tuple[int, int]) -> str:
    """The SVG of a screen (`run`, `gpus` or `overview`) at that moment of the recording."""
    replay = Replay(str(RECORDING))
    replay.seek(replay.find(AT))
    app = ReplayApp(replay, theme=THEME)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        replay.pause()
        if name == "gpus":
            await pilot.press("d")
        elif name == "overview":
            app.open_overview()
        await asyncio.sleep(2.0)  # toasts are gone, every clock has beaten
        await pilot.pause()
        return app.export_screenshot(title="hoptui")


def main() -> int:
    """Take the pictures."""
    for name in ("run", "gpus", "overview"):
        for columns, rows in SIZES:
            svg = asyncio.run(shoot(name, (columns, rows)))
            path = HERE / f"{name}_{columns}x{rows}.svg"
            path.write_text(svg)
            print(path.name)
            try:
                path.with_suffix(".png").write_bytes(png(svg))
            except NoFontError as error:
                print(error, file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
