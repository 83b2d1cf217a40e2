"""The dashboard behind a web server: Textual's driver, ended by the end of its input."""

from __future__ import annotations

import contextlib
from typing import Any

from textual.drivers.web_driver import WebDriver


class BrowserDriver(WebDriver):
    """Leaves when the server has gone: Textual's own goes on drawing for nobody."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        write = self._write
        self._write = lambda data: self._until_gone(write, data)  # type: ignore[assignment]

    def run_input_thread(self) -> None:
        super().run_input_thread()
        if not self.exit_event.is_set():
            self._app.call_from_thread(self._app.exit)

    @staticmethod
    def _until_gone(write: Any, data: bytes) -> int:
        with contextlib.suppress(BrokenPipeError):
            return int(write(data))
        return len(data)
