"""Every column comes out as it went in, in the form that suits it, in few bytes and little time."""

from __future__ import annotations

import json
import math
import random
import struct
import time
import zlib
from array import array

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hoptui.domain.columns import LOGGED_NAN, is_known
from hoptui.recording.compression import Packed, pack

NAN = math.nan
anything = st.floats(allow_nan=True) | st.sampled_from([0.0, -0.0, 0.1, 5e-324, math.inf, 1e22, 2.0**53])
decimals = st.builds(lambda n, d: n / 10**d, st.integers(-(10**12), 10**12), st.integers(0, 9)) | st.just(NAN)
singles = st.floats(width=32)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)


def same(found: array[float], given: array[float]) -> bool:
    """To the last bit, −0.0 included; NaN is NaN."""
    return [v if v == v else None for v in found] == [v if v == v else None for v in given] and [
        math.copysign(1, v) for v in found if v == v
    ] == [math.copysign(1, v) for v in given if v == v]


@given(
    st.integers(1, 40).flatmap(
        lambda n: st.tuples(
            st.lists(int64 | st.integers(0, 300), min_size=n, max_size=n),
            st.lists(
                st.lists(anything, min_size=n, max_size=n)
                | st.lists(decimals, min_size=n, max_size=n)
                | st.lists(singles, min_size=n, max_size=n)
                | st.builds(lambda v: [v] * n, anything),
                max_size=4,
            ),
        )
    )
)
@example(([-(1 << 63), (1 << 63) - 1], [[NAN, 1e300], [math.inf, -math.inf], [0.0, -0.0], [1e15 + 0.1, 1.0]]))
@settings(max_examples=300, deadline=None)
def test_nothing_is_lost(case: tuple[list[int], list[list[float]]]) -> None:
    whole, columns = array("q", case[0]), [array("d", column) for column in case[1]]
    packed = Packed(pack([whole, *columns]), len(whole))
    assert len(packed) == 1 + len(columns)
    assert packed.integers(0) == whole
    for i, column in enumerate(columns, start=1):
        assert same(packed.floats(i), column)


def form(column: array[float] | array[int]) -> dict[str, object]:
    raw = zlib.decompress(pack([column]))
    directory = json.loads(raw[4 : 4 + int.from_bytes(raw[:4], "little")])
    found: dict[str, object] = directory["columns"][0]
    return found


noise = random.Random(7)
watts = array("d", [round(noise.gauss(650, 9), 2) for _ in range(512)])


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (array("d", [3e-4]) * 512, {"is": "constant", "value": 3e-4}),
        (array("d", [NAN]) * 512, {"is": "constant", "value": None}),
        (array("q", range(7, 4096 * 512, 4096)), {"is": "whole", "start": -4089, "planes": 0, "slope": 4096}),
        (array("d", [1000.0 * (i * 7919 % 200) for i in range(512)]),
         {"is": "whole", "planes": 1, "unit": 1000}),
        (watts, {"is": "whole", "planes": 2, "digits": 2}),
        (array("d", [v if i % 2 else NAN for i, v in enumerate(watts)]),
         {"planes": 2, "digits": 2, "gaps": True}),
        (array("d", array("f", [noise.gauss(2, 0.1) for _ in range(512)])), {"is": "bits", "planes": 4}),
        (array("d", [4096 / noise.gauss(2, 0.1) for _ in range(512)]), {"is": "bits", "planes": 8}),
        (array("d", [1.0, math.inf] * 256), {"is": "bits", "planes": 4}),
    ],
)  # fmt: skip
def test_each_kind_of_reading_has_its_form(
    column: array[float] | array[int], expected: dict[str, object]
) -> None:
    found = form(column)
    assert {name: found.get(name) for name in expected} == expected


def test_a_slow_drift_is_kept_as_steps_and_noise_around_a_level_as_distances() -> None:
    drift = array("d", [float(round(1e6 + 40 * i + noise.gauss(0, 3))) for i in range(512)])
    assert "slope" in form(drift)
    assert "slope" not in form(watts)


def readings(rows: int) -> list[array[float] | array[int]]:
    """Stamps, steps and 30 names like those of a GPU under load."""
    stamps = array("q", [i * 500_000_000 + int(abs(noise.gauss(0, 80_000))) for i in range(rows)])
    columns: list[array[float] | array[int]] = [stamps, array("q", [-1]) * rows]
    columns += [array("d", [round(abs(noise.gauss(50, 0.5)), 2) for _ in range(rows)]) for _ in range(12)]
    columns += [
        array("d", [1000.0 * round(abs(noise.gauss(2e4, 2e3))) for _ in range(rows)]) for _ in range(3)
    ]
    columns += [array("d", [float(noise.random() < 0.1) for _ in range(rows)]) for _ in range(5)]
    columns += [array("d", [float(i)]) * rows for i in range(10)]
    return columns


def test_a_blocks_size_and_time() -> None:
    """About 19 bytes a row where zlib of float64 takes 60; 4 ms to pack and 1.5 ms to unpack on one core of a
    small machine. The bounds leave room for a loaded one."""
    columns = readings(512)
    began = time.process_time()
    body = pack(columns)
    packed = time.process_time() - began
    assert len(body) < 24 * 512
    assert len(body) < len(zlib.compress(b"".join(c.tobytes() for c in columns), 1)) / 2
    began = time.process_time()
    opened = Packed(body, 512)
    for i in range(2, 32):
        opened.floats(i)
    unpacked = time.process_time() - began
    assert packed < 0.06
    assert unpacked < 0.03


def body_of(directory: object, planes: bytes) -> bytes:
    head = json.dumps(directory).encode()
    return zlib.compress(struct.pack("<I", len(head)) + head + planes)


WHOLE = {"is": "whole", "start": 0, "planes": 1}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no zlib",
        zlib.compress(b"\xff\xff\xff\xff{}"),
        zlib.compress(struct.pack("<I", 2) + b"\xff\xfe"),
        body_of({"columns": [WHOLE]}, b"\0\0"),
        body_of({"columns": [WHOLE], "order": [1]}, b"\0\0"),
        body_of({"columns": [WHOLE], "order": [0, 0]}, b"\0\0\0\0"),
        body_of({"columns": [WHOLE], "order": [0]}, b"\0"),
        body_of({"columns": [WHOLE | {"planes": 9}], "order": list(range(9))}, b"\0" * 18),
        body_of({"columns": [WHOLE | {"planes": -1}], "order": []}, b""),
        body_of({"columns": [WHOLE | {"digits": 400}], "order": [0]}, b"\0\0"),
        body_of({"columns": [{"is": "bits", "planes": 3}], "order": [0, 1, 2]}, b"\0" * 6),
        body_of({"columns": [{"is": "else"}], "order": []}, b""),
    ],
)
def test_a_damaged_blob_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError):
        Packed(body, 2).floats(0)


@pytest.mark.parametrize(
    "column",
    [
        {"is": "constant", "value": None},
        {"is": "constant", "value": 1.5},
        {"is": "constant", "value": 1 << 63},
        {"is": "whole", "start": 1 << 62, "slope": 1 << 62, "planes": 0},
    ],
)
def test_what_is_no_int64_is_a_value_error(column: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Packed(body_of({"columns": [column], "order": []}, b""), 2).integers(0)


def test_noise_beside_quiet_columns_is_one_stream_and_no_larger() -> None:
    generator = random.Random(3)
    rows = 512
    noise = [array("d", array("f", [generator.random() for _ in range(rows)])) for _ in range(20)]
    quiet = [array("d", [round(math.sin(i / 9), 1) for i in range(rows)]) for _ in range(5)]
    body = pack([array("q", range(rows)), *noise, *quiet])
    raw = zlib.decompress(body)
    assert len(body) < 1.005 * len(zlib.compress(raw, 9))
    packed = Packed(body, rows)
    assert [packed.floats(i + 1) for i in range(25)] == [*noise, *quiet]


@pytest.mark.parametrize("values", [[LOGGED_NAN] * 8, [0.5, LOGGED_NAN, NAN, 2.0]])
def test_a_nan_that_was_logged_stays_one(values: list[float]) -> None:
    found = Packed(pack([array("d", values)]), len(values)).floats(0)
    assert list(map(is_known, found)) == list(map(is_known, values))
    assert same(found, array("d", values))
