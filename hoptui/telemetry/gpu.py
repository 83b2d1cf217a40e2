"""One GPU: which of its readings are due, what they say, and what happens to a reading that fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hoptui.telemetry.readings import EVERY_TICK, ONCE, Call, Field, Reading

SECOND_NS = 1_000_000_000
UNSUPPORTED_NS = 300 * SECOND_NS
BACKOFF_MAX_NS = 60 * SECOND_NS

UNSUPPORTED = frozenset((2, 3, 13, 25, 26))
"""NVML_ERROR_INVALID_ARGUMENT, _NOT_SUPPORTED, _FUNCTION_NOT_FOUND, _ARGUMENT_VERSION_MISMATCH and _DEPRECATED: this
GPU or its driver has no such reading. Invalid argument is how older drivers answer for a field they do not know."""
LOST = {15: "lost: fell off the bus", 16: "lost: it needs a reset", 28: "lost: no longer there"}
"""NVML_ERROR_GPU_IS_LOST, _RESET_REQUIRED and _GPU_NOT_FOUND: the whole GPU cannot be read."""
DRIVER_GONE = frozenset((1, 9, 18))
"""NVML_ERROR_UNINITIALIZED, _DRIVER_NOT_LOADED and _LIB_RM_VERSION_MISMATCH: no GPU can be read."""

_FUNCTION_NOT_FOUND = 13
_NOT_AVAILABLE = frozenset((0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF))  # NVML_VALUE_NOT_AVAILABLE, in both widths
_MEMBERS = (
    "dVal",
    "uiVal",
    "ulVal",
    "ullVal",
    "sllVal",
    "siVal",
    "usVal",
)  # of nvmlValue_t, by nvmlValueType_t


class FieldValues:
    """The field values of all readings in one NVML call, through one array that is kept.

    The array has one entry more than NVML is told of: on NVLink counters it has written past the end.

    Args:
        nvml: the module pynvml.
        constants: names of the fields, NVML_FI_….
    """

    def __init__(self, nvml: Any, constants: Iterable[str]) -> None:
        self._nvml = nvml
        self._places = {constant: i for i, constant in enumerate(constants)}
        self._array = (nvml.c_nvmlFieldValue_t * (len(self._places) + 1))()
        for constant, i in self._places.items():
            self._array[i].fieldId = getattr(nvml, constant)

    def fetch(self, handle: Any) -> None:
        """Read all fields of one GPU.

        Raises:
            NVMLError: the call failed as a whole.
        """
        function = getattr(self._nvml.nvmlLib, "nvmlDeviceGetFieldValues", None)
        code = function(handle, len(self._places), self._array) if function else _FUNCTION_NOT_FOUND
        if code:
            raise self._nvml.NVMLError(code)

    def __getitem__(self, constant: str) -> float:
        """The value of one field as last fetched, in NVML's unit.

        Raises:
            NVMLError: this field failed.
        """
        entry = self._array[self._places[constant]]
        if entry.nvmlReturn:
            raise self._nvml.NVMLError(entry.nvmlReturn)
        return getattr(entry.value, _MEMBERS[entry.valueType])  # type: ignore[no-any-return]


@dataclass
class _State:
    """How a source of a reading has fared on this GPU."""

    worked: bool = False
    failures: int = 0
    retry_at: int = 0
    complaint: str = ""


class Gpu:
    """The readings of one GPU.

    A reading that is not supported is absent, and tried again every five minutes; one that fails otherwise is unknown,
    and tried again after 1, 2, 4 … 60 s. Errors of the whole GPU or of the driver are raised.

    Args:
        nvml: the module pynvml.
        handle: NVML's handle of the GPU.
        fields: shared by the GPUs, which are read one after the other.
        label: what to call the GPU in a report.
        report: takes one line about a reading that fails, once for each new reason.
    """

    def __init__(
        self, nvml: Any, handle: Any, fields: FieldValues, label: str, report: Callable[[str], None]
    ) -> None:
        self._nvml = nvml
        self._handle = handle
        self._fields = fields
        self._label = label
        self._report = report
        self._states: dict[Call | Field, _State] = {}
        self._read_at: dict[Reading, int] = {}
        self._answers: dict[object, Any] = {}
        self.facts: dict[str, Any] = {}
        self.reason = ""

    def read_facts(self, table: Iterable[Reading], t: int) -> None:
        """Bring `facts` up to date at `t` (monotonic ns). Raises NVMLError as `read` does."""
        due = [reading for reading in table if self._due(reading, t)]
        found, _ = self._read(due, t)
        for reading in due:
            self.facts[reading.name] = found.get(reading.name)

    def read(self, table: Iterable[Reading], t: int) -> dict[str, float]:
        """The readings of the table that are due at `t` (monotonic ns) and known. `reason` says why there are none.

        Raises:
            NVMLError: its value is in LOST or DRIVER_GONE.
        """
        found, error = self._read([reading for reading in table if self._due(reading, t)], t)
        if found:
            self.reason = ""
        elif error is not None:
            self.reason = f"no reading succeeds (NVML: {error})"
        return found

    def _due(self, reading: Reading, t: int) -> bool:
        before = self._read_at.get(reading)
        if before is None or reading.every_s == EVERY_TICK:
            return True
        if reading.every_s == ONCE:
            return self.facts.get(reading.name) is None
        every = int(reading.every_s * SECOND_NS)
        return t // every > before // every

    def _read(self, due: Iterable[Reading], t: int) -> tuple[dict[str, Any], Exception | None]:
        """What is found, and the last error met on the way."""
        self._answers.clear()
        found: dict[str, Any] = {}
        error: Exception | None = None
        for reading in due:
            self._read_at[reading] = t
            for source in reading.sources:
                state = self._states.setdefault(source, _State())
                if t >= state.retry_at:
                    try:
                        value = self._ask(source)
                    except self._nvml.NVMLError as failure:
                        if failure.value in DRIVER_GONE or failure.value in LOST:
                            raise
                        self._failed(reading, state, failure, t)
                        error = failure
                    else:
                        state.worked, state.failures = True, 0
                        if _known(value):
                            found[reading.name] = value if isinstance(value, str) else value * reading.scale
                if state.worked:  # a stand-in measures something else: it must not fill a gap
                    break
        return found, error

    def _failed(self, reading: Reading, state: _State, failure: Any, t: int) -> None:
        if failure.value in UNSUPPORTED:
            state.retry_at = t + UNSUPPORTED_NS
            return
        state.failures += 1
        state.retry_at = t + min(BACKOFF_MAX_NS, SECOND_NS << min(state.failures - 1, 6))
        if state.complaint != str(failure):
            state.complaint = str(failure)
            self._report(f"{self._label}: {reading.name} cannot be read (NVML: {failure})")

    def _ask(self, source: Call | Field) -> Any:
        """The answer of one source; a call that several share is made once a tick, and so are its errors."""
        match source:
            case Field(constant):
                self._once("fields", lambda: self._fields.fetch(self._handle))
                return self._fields[constant]
            case Call(function, arguments, value):
                return value(self._once((function, arguments), lambda: self._call(function, arguments)))

    def _once(self, key: object, call: Callable[[], Any]) -> Any:
        if key not in self._answers:
            try:
                self._answers[key] = call()
            except self._nvml.NVMLError as error:
                self._answers[key] = error
        answer = self._answers[key]
        if isinstance(answer, self._nvml.NVMLError):
            raise answer
        return answer

    def _call(self, name: str, arguments: Iterable[str]) -> Any:
        function = getattr(self._nvml, name, None)
        if function is None:  # a release of pynvml that has dropped a deprecated one
            raise self._nvml.NVMLError(_FUNCTION_NOT_FOUND)
        return function(self._handle, *(getattr(self._nvml, argument) for argument in arguments))


def _known(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value)
    return not math.isnan(value) and value not in _NOT_AVAILABLE
