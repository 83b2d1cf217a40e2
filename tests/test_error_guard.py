"""Errors of adapters stay in the adapters."""

from __future__ import annotations

import pytest

from hoptui.integrations.error_guard import harmless


class Adapter:
    """Raises what it is told to."""

    def __init__(self, also: Exception | None = None) -> None:
        self.given_up, self._also = 0, also

    @harmless
    def step(self, error: BaseException | None) -> str:
        if error is not None:
            raise error
        return "done"

    def give_up(self) -> None:
        self.given_up += 1
        if self._also is not None:
            raise self._also


@pytest.mark.parametrize("also", [None, OSError("full")])
def test_an_error_is_logged_and_the_adapter_gives_up(
    also: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = Adapter(also)
    assert adapter.step(None) == "done"
    assert adapter.given_up == 0
    assert adapter.step(ValueError("no")) is None
    assert adapter.given_up == 1
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        "hoptui is off in this run: step raised ValueError: no"
    ]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_what_ends_the_process_passes(error: BaseException) -> None:
    adapter = Adapter()
    with pytest.raises(type(error)):
        adapter.step(error)
    assert adapter.given_up == 0
