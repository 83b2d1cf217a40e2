"""The packages of calls that only the called object knows."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from hoptui.domain.stacks import unpack  # noqa: E402
from hoptui.sdk.called_objects import CYTHON, with_package  # noqa: E402
from tests.conftest import until  # noqa: E402
from tests.sdk.test_stack_sampler import Worker, sampler_of  # noqa: E402

exponential = np.exp


def proxy() -> Any:
    """Return an object of a user that must not be touched, nor its class."""

    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            raise AssertionError(name)

    class Proxy(metaclass=Meta):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    return Proxy()


class Lazy(ModuleType):
    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)


def script(**names: Any) -> ModuleType:
    """Return a module of a user with these names."""
    module = ModuleType("script")
    module.__dict__.update(names)
    return module


def function(own: int) -> None:
    """Have a local name."""


CALLS = {
    "exp": "numpy.exp",
    "la.norm": "numpy.linalg.norm",
    "np.exp": "np.exp",
    "compiled": "cython.compiled",
    "own": "own",
    "own.exp": "own.exp",
    "array.sum": "array.sum",
    "len": "len",
    "proxy": "proxy",
    "lazy.call": "lazy.call",
    "os.stat": "os.stat",
    "unknown": "unknown",
    "": "",
}


@pytest.mark.parametrize(("call", "shown"), CALLS.items(), ids=[f"{call} " for call in CALLS])
def test_a_call_has_the_package_of_what_it_calls(
    call: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    module = script(
        exp=np.exp,
        la=np.linalg,
        np=np,
        own=np.exp,
        array=np.zeros(1),
        proxy=proxy(),
        lazy=Lazy("lazy"),
        os=os,
        compiled=type(CYTHON, (), {})(),
    )
    monkeypatch.setitem(sys.modules, "script", module)
    assert with_package(call, function.__code__, "script") == shown


@pytest.mark.parametrize("module", [lambda: None, str, proxy], ids=["none", "text", "object"])
def test_what_is_no_module_has_no_names(module: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "script", module())
    assert with_package("exp", function.__code__, "script") == "exp"
    assert with_package("exp", function.__code__, "") == "exp"


@pytest.mark.parametrize(
    ("call", "groups", "file", "shown"),
    [
        ("own.wait", {"default": 1}, "", "c10d.own.wait"),
        ("wait", {"default": 1}, "", "c10d.wait"),
        ("own.wait", {}, "", "own.wait"),
        ("own.wait", None, "", "own.wait"),
        ("own.wait_for", {"default": 1}, "", "own.wait_for"),
        ("self._cond.wait", {"default": 1}, threading.__file__, "self._cond.wait"),
        ("wait", {"default": 1}, "/opt/libs/torch/cuda/streams.py", "wait"),
    ],
)
def test_a_request_is_of_torch_if_there_are_other_processes(
    call: str, groups: dict[str, int] | None, file: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    collectives = ModuleType("collectives")
    if groups is not None:
        collectives.__dict__["_pg_map"] = groups
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", collectives)
    code = function.__code__.replace(co_filename=file or function.__code__.co_filename)
    assert with_package(call, code, "script") == shown


def test_torch_says_which_groups_there_are(tmp_path: Path) -> None:
    dist = pytest.importorskip("torch.distributed")
    assert with_package("own.wait", function.__code__, "script") == "own.wait"
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert with_package("own.wait", function.__code__, "script") == "c10d.own.wait"
    finally:
        dist.destroy_process_group()
    assert with_package("own.wait", function.__code__, "script") == "own.wait"


def test_a_sample_has_the_package() -> None:
    numbers = np.zeros(1 << 20)

    def work(over: Callable[[], bool]) -> None:
        while not over():
            exponential(numbers)

    calls: Counter[str] = Counter()

    def look() -> bool:
        sampler.sample()
        samples = sampler.take()
        if samples is not None:
            calls.update(stack[-1].call for stack in unpack(samples))
        return calls["numpy.exponential"] > 3

    with Worker(work) as thread:
        sampler = sampler_of(lambda: thread)
        until(look, what="the call in samples")
    assert not calls["exponential"]
