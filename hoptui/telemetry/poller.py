"""Polls the readings of one GPU: which are due, their values, and the handling of failures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hoptui.domain.facts import Fact, fact
from hoptui.telemetry.metrics_table import EVERY_TICK, ONCE, Call, Field, Reading
from hoptui.telemetry.nvml_errors import (
    FATAL,
    FUNCTION_NOT_FOUND,
    NOT_SUPPORTED,
    SECOND_NS,
    UNSUPPORTED,
    backoff,
    failed,
    fields_of,
)

UNSUPPORTED_NS = 300 * SECOND_NS
NO_VALUE = fact("reading.no_value")

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


class Reader:
    """Reads one table of one GPU.

    A reading that is not supported is absent, and tried again every five minutes; one that fails otherwise is
    unknown, and tried again after 1, 2, 4 … 60 s. Errors of the whole GPU or of the driver are raised.

    Args:
        nvml: the module pynvml.
        handle: NVML's handle of the GPU.
        table: what to read.
        label: what to call the GPU in a report.
        report: takes one line about a reading that fails, once for each new reason.
    """

    def __init__(
        self, nvml: Any, handle: Any, table: Sequence[Reading], label: str, report: Callable[[str], None]
    ) -> None:
        self._nvml = nvml
        self._label = label
        self._report = report
        self._round = 0
        questions: dict[tuple[str, tuple[str, ...]], _Question] = {}
        self._cadences = []
        for every in dict.fromkeys(reading.every_s for reading in table):
            readings = [reading for reading in table if reading.every_s == every]
            constants = [s.constant for reading in readings for s in reading.sources if isinstance(s, Field)]
            fields = FieldValues(nvml, handle, constants)
            fetched = _Question(nvml, fields.fetch)
            tracks = []
            for reading in readings:
                track = _Track(reading)
                for source in reading.sources:
                    match source:
                        case Field(constant):
                            track.sources.append(_Source(fetched, fields.value_of(constant)))
                        case Call(function, arguments, value):
                            key = (function, arguments)
                            question = questions.get(key) or _Question(nvml, _call(nvml, handle, *key))
                            questions[key] = question
                            track.sources.append(_Source(question, value))
                tracks.append(track)
            self._cadences.append(_Cadence(every, tracks))
        self._tracks = {track.name: track for cadence in self._cadences for track in cadence.tracks}
        self.problem: Fact | None = None
        """Why nothing could be read, None when something could."""
        self.changes = 0
        """Rises whenever `reasons` has changed."""

    def read(self, t: int) -> dict[str, Any]:
        """The readings that are due at `t` (monotonic ns) and known.

        Raises:
            NVMLError: its value is in LOST or DRIVER_GONE.
        """
        return {name: value for name, value in self.ask(t).items() if value is not None}

    def ask(self, t: int) -> dict[str, Any]:
        """As `read`, with None for those that are due and unknown."""
        self._round += 1
        found: dict[str, Any] = {}
        error: Any = None
        known = False
        for cadence in self._cadences:
            if t < cadence.due:
                continue
            for track in cadence.tracks:
                value, failure = self._value(track, t)
                found[track.name] = value
                error = failure or error
                known = known or value is not None
            cadence.asked(t, found)
        if known:
            self.problem = None
        elif error is not None:
            self.problem = Fact("gpu.nothing_readable", fields_of(error))
        return found

    def why_not(self, name: str) -> Fact | None:
        """Why the reading of this name is unknown, None if it is known or has not been asked for."""
        return self._tracks[name].why if name in self._tracks else None

    def reasons(self) -> dict[str, Fact]:
        """Why readings are unknown, by name; those that are known or have not been asked for are not in
        it."""
        return {name: track.why for name, track in self._tracks.items() if track.why}

    def _value(self, track: _Track, t: int) -> tuple[Any, Exception | None]:
        error: Exception | None = None
        for source in track.sources:
            if t >= source.retry_at:
                try:
                    value = source.value(source.question.answer(self._round))
                except self._nvml.NVMLError as failure:
                    if failure.value in FATAL:
                        raise
                    self._failed(track, source, failure, t)
                    error = failure
                else:
                    source.worked, source.failures = True, 0
                    if isinstance(value, str):
                        self._because(track, None)
                        return value or None, None
                    if value in _NOT_AVAILABLE or value != value:
                        self._because(track, NO_VALUE)
                        return None, None
                    if track.why:
                        self._because(track, None)
                    return round(value * track.scale, track.digits) if track.digits else value, None
            if source.worked:  # a stand-in measures something else: it must not fill a gap
                break
        return None, error

    def _failed(self, track: _Track, source: _Source, failure: Any, t: int) -> None:
        if failure.value in UNSUPPORTED:
            source.retry_at = t + UNSUPPORTED_NS
            self._because(track, NOT_SUPPORTED)
            return
        source.failures += 1
        source.retry_at = t + backoff(source.failures)
        self._because(track, failed(failure))
        if source.complaint != str(failure):
            source.complaint = str(failure)
            self._report(f"{self._label}: {track.name} cannot be read (NVML: {failure})")

    def _because(self, track: _Track, why: Fact | None) -> None:
        if track.why != why:
            track.why = why
            self.changes += 1


class FieldValues:
    """Field values of one GPU in one NVML call, through one array that is kept.

    The array has one entry more than NVML is given: on NVLink counters it has written past the end.

    Args:
        nvml: the module pynvml.
        handle: NVML's handle of the GPU.
        constants: names of the fields, NVML_FI_….
    """

    def __init__(self, nvml: Any, handle: Any, constants: Iterable[str]) -> None:
        self._nvml = nvml
        self._handle = handle
        names = list(dict.fromkeys(constants))
        self._count = len(names)
        self._array = (nvml.c_nvmlFieldValue_t * (len(names) + 1))()
        self._entries = dict(zip(names, self._array, strict=False))
        for constant, entry in self._entries.items():
            entry.fieldId = getattr(nvml, constant)

    def fetch(self) -> None:
        """Read all fields.

        Raises:
            NVMLError: the call failed as a whole.
        """
        function = getattr(self._nvml.nvmlLib, "nvmlDeviceGetFieldValues", None)
        code = function(self._handle, self._count, self._array) if function else FUNCTION_NOT_FOUND
        if code:
            raise self._nvml.NVMLError(code)

    def value_of(self, constant: str) -> Callable[[None], float]:
        """What gives the value of one field as last fetched, in NVML's unit; raises NVMLError if that field
        failed."""
        entry = self._entries[constant]

        def value(_: None) -> float:
            if entry.nvmlReturn:
                raise self._nvml.NVMLError(entry.nvmlReturn)
            return getattr(entry.value, _MEMBERS[entry.valueType])  # type: ignore[no-any-return]

        return value


class _Question:
    """One NVML call: made once a round, however many readings share its answer or its error."""

    def __init__(self, nvml: Any, ask: Callable[[], Any]) -> None:
        self._nvml = nvml
        self._ask = ask
        self._round = 0
        self._answer: Any = None
        self._error: Exception | None = None

    def answer(self, of_round: int) -> Any:
        if self._round != of_round:
            self._round = of_round
            try:
                self._answer, self._error = self._ask(), None
            except self._nvml.NVMLError as error:
                self._error = error
        if self._error is not None:
            raise self._error
        return self._answer


class _Source:
    """One way to have a reading, and how it has fared on this GPU."""

    __slots__ = ("complaint", "failures", "question", "retry_at", "value", "worked")

    def __init__(self, question: _Question, value: Callable[[Any], Any]) -> None:
        self.question = question
        self.value = value
        self.worked = False
        self.failures = 0
        self.retry_at = 0
        self.complaint = ""


class _Track:
    """One reading of one GPU, and where to have it from."""

    __slots__ = ("digits", "name", "scale", "sources", "why")

    def __init__(self, reading: Reading) -> None:
        self.name = reading.name
        self.scale = reading.scale
        self.digits = reading.digits
        self.sources: list[_Source] = []
        self.why: Fact | None = None


class _Cadence:
    """The readings of one cadence: a tick passes by all that are not due with one comparison."""

    __slots__ = ("due", "every", "tracks")

    def __init__(self, every: float, tracks: list[_Track]) -> None:
        self.every = every
        self.tracks = tracks
        self.due: float = 0

    def asked(self, t: int, found: Mapping[str, Any]) -> None:
        """They were asked for at `t`: again on a grid of the clock, or never once a fact is known."""
        if self.every == ONCE:
            self.tracks = [track for track in self.tracks if found[track.name] is None]
            self.due = 0 if self.tracks else math.inf
        elif self.every != EVERY_TICK:
            every = int(self.every * SECOND_NS)
            self.due = (t // every + 1) * every


def _call(nvml: Any, handle: Any, name: str, arguments: Iterable[str]) -> Callable[[], Any]:
    function = getattr(nvml, name, None)
    given = [getattr(nvml, argument) for argument in arguments]

    def call() -> Any:
        if function is None:  # a release of pynvml that has dropped a deprecated one
            raise nvml.NVMLError(FUNCTION_NOT_FOUND)
        return function(handle, *given)

    return call
