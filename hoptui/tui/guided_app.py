"""The dashboard of the demo: that of a run or of a recording, with a line of hints on the run screen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.actions import ActionParseResult
from textual.dom import DOMNode

from hoptui.model.runs import StartingRun
from hoptui.protocol.messages import NodeState, RunState
from hoptui.tui.app import HoptuiApp
from hoptui.tui.app_protocol import Frame
from hoptui.tui.components.hints import Hints
from hoptui.tui.replay_app import ReplayApp
from hoptui.tui.screen_base import LiveScreen
from hoptui.tui.screens.run.screen import RunScreen
from hoptui.tui.widgets import KeyBar, Lines

STYLES = "styles/guided.tcss"
LINE = "hints"


class GuidedApp(HoptuiApp):
    """The dashboard of a run, with hints. It may be open before the run has connected."""

    CSS_PATH = [*HoptuiApp.CSS_PATH, STYLES]

    def __init__(
        self,
        *arguments: Any,
        hints: Hints | None = None,
        starting: StartingRun | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.hints = hints or Hints()
        self.starting = starting

    def asked_run(self, node: NodeState, asked: str) -> RunState | None:
        return self.starting.find(node) if self.starting else super().asked_run(node, asked)

    def tick(self) -> None:
        if self.starting is not None and self.starting.state is None:
            if self.starting.ended():
                self.exit(return_code=1)
                return
            self.find_asked()
        super().tick()

    def furnish(self, screen: LiveScreen) -> None:
        super().furnish(screen)
        if isinstance(screen, RunScreen) and not screen.query(f"#{LINE}"):
            screen.mount(Lines(LINE), before=screen.query_one(KeyBar))

    async def run_action(
        self,
        action: str | ActionParseResult,
        default_namespace: DOMNode | None = None,
        namespaces: Mapping[str, DOMNode] | None = None,
    ) -> bool:
        done = await super().run_action(action, default_namespace, namespaces)
        if done and isinstance(action, str):
            self.hints.did(action)
            self._draw_hints()
        return done

    def _draw(self, frame: Frame) -> None:
        super()._draw(frame)
        if frame.numbers:
            self._draw_hints()

    def _draw_hints(self) -> None:
        screen = self.screen_stack[-1] if self.screen_stack else None
        if not isinstance(screen, RunScreen):
            return
        for lines in screen.query(f"#{LINE}").results(Lines):
            shown = self.hints.line(screen.view(), self.clock(), screen.size.width - 2)
            lines.display = shown is not None
            lines.show([] if shown is None else [shown])


class GuidedReplay(GuidedApp, ReplayApp):
    """The dashboard of a recording, with hints."""

    CSS_PATH = [*ReplayApp.CSS_PATH, STYLES]
