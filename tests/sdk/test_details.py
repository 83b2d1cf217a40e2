"""What describes a run: values of any kind become plain ones of limited size, and nothing raises."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import math
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import pytest

import hoptui
from hoptui.domain.details import MOST_CONFIG_BYTES, MOST_SUMMARY_BYTES, RunDetails
from hoptui.sdk import details
from hoptui.sdk.details import DescribedValues, DetailsBook, entries, flat, plain
from hoptui.sdk.secrets import MASK
from tests.golden import Golden
from tests.run_state import run_state


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Model:
    layers: int = 12
    path: pathlib.Path = pathlib.Path("/data")


class Options:
    """As a script of nanoGPT's kind may have it: a class with attributes."""

    lr = 3e-4
    _private = 1

    def method(self) -> None: ...


class Broken(Mapping[str, Any]):
    """Like an OmegaConf with an interpolation that cannot be resolved."""

    def __getitem__(self, name: str) -> Any:
        if name == "bad":
            raise ValueError("no such interpolation")
        return 1

    def __iter__(self) -> Any:
        return iter(("good", "bad"))

    def __len__(self) -> int:
        return 2


class Raising:
    __slots__ = ()

    def __repr__(self) -> str:
        raise RuntimeError

    def __float__(self) -> float:
        raise RuntimeError


class Looping(dict[str, Any]):
    """It is inside itself."""

    def __init__(self) -> None:
        super().__init__()
        self["self"] = self


def test_values_of_every_kind(golden: Golden) -> None:
    shown = flat(
        {
            "none": None, "bool": True, "int": 3, "float": 0.1, "nan": math.nan, "big": 1 << 70,
            "text": "a\nb",
            "long": "x" * 10_000, "path": pathlib.Path("/x"), "enum": Colour.RED, "bytes": b"abc",
            "list": [1, (2.0, "b"), {"c": Colour.RED}], "long list": range(1000), "set": {1}, "empty": {},
            "nested": {"a": {"b": {"c": 1}}}, "dataclass": Model(), "namespace": argparse.Namespace(lr=1),
            "class": Model, "function": math.sqrt, "lambda": lambda: 0, "object": Raising(),
            "numpy": np.float32(0.5), "numpy int": np.int64(4), "array": np.zeros((2, 3)),
            "dtype": np.dtype("float32"), "broken": Broken(), "numbers": {1: "one"},
        }
    )  # fmt: skip
    lines = (f"{name} = {msgspec.json.encode(value).decode()}" for name, value in shown.items())
    golden(lines, normalize={r"x{20,}…": "xxx…"})


@pytest.mark.parametrize("value", [Looping(), [[]] * 100_000, "x" * 10_000_000, {"a": [Looping()] * 99}])
def test_the_size_of_a_value_is_limited(value: Any) -> None:
    shown = flat({"v": value})
    assert len(msgspec.msgpack.encode(shown)) < 64 << 10


def test_objects_with_values() -> None:
    class Pretrained:
        def to_dict(self) -> dict[str, int]:
            return {"hidden": 64}

    assert entries(argparse.Namespace(a=1)) == {"a": 1}
    assert entries(Model()) == {"layers": 12, "path": pathlib.Path("/data")}
    assert entries(Options) == {"lr": 3e-4}
    assert entries(Pretrained()) == {"hidden": 64}
    assert entries([("a", 1)]) == {"a": 1}
    assert entries(None) == {}
    for strange in (5, "text", [1, 2], Raising()):
        assert entries(strange) is None


def test_a_mapping_with_attributes() -> None:
    changes = []
    values = DescribedValues(lambda: changes.append(1))
    values.update({"lr": 1e-3, "model": {"layers": 2}}, seed=1)
    values["batch"] = 4
    values.compile = True
    values.setdefaults({"lr": 9, "new": None})
    assert (values.lr, values["model"]["layers"], values.get("nothing"), len(values)) == (1e-3, 2, None, 6)
    assert list(values) == ["lr", "model", "seed", "batch", "compile", "new"]
    assert values.as_dict() == dict(values)
    del values["seed"], values.new
    assert details.shown_values(values) == {"lr": 1e-3, "model.layers": 2, "batch": 4, "compile": True}
    assert len(changes) == 6
    for wrong in ("missing", "seed"):
        with pytest.raises(AttributeError):
            getattr(values, wrong)
        with pytest.raises(KeyError):
            values[wrong]
    values.update(5)
    values.update(Raising())


def test_secrets_are_masked_wherever_they_are() -> None:
    shown = flat({"api_key": "k", "nested": {"password": 5}, "list": [{"token": "t"}], "max_tokens": 5})
    assert shown == {
        "api_key": MASK, "nested.password": MASK, "list": [{"token": MASK}], "max_tokens": 5,
    }  # fmt: skip


def test_a_tensor_of_one_element_is_a_number() -> None:
    torch = pytest.importorskip("torch")
    assert plain(torch.tensor(0.5)) == 0.5
    assert plain(torch.zeros(2, 3)) == "<Tensor (2, 3)>"
    assert plain(torch.bfloat16) == "torch.bfloat16"
    assert plain(torch.empty(1, device="meta")) == "<Tensor (1,)>", "nothing waits for a device"


def test_too_much_is_cut_and_counted() -> None:
    book = DetailsBook({f"k{i}": "x" * 400 for i in range(500)}, (), "")
    book.summary.update({f"k{i}": "x" * 400 for i in range(500)})
    message = book.message()
    assert len(msgspec.msgpack.encode(message.config)) <= MOST_CONFIG_BYTES + 16
    assert len(msgspec.msgpack.encode(message.summary)) <= MOST_SUMMARY_BYTES + 16
    assert len(message.config) + message.config_left_out == 500
    assert len(message.summary) + message.summary_left_out == 500


@pytest.mark.parametrize(
    ("tags", "kept"),
    [
        (("a", "b", "a", " "), ("a", "b")),
        ("alone", ("alone",)),
        (None, ()),
        (5, ()),
        ([1, "x" * 99], ("1", "x" * 64)),
        (map(str, range(99)), tuple(map(str, range(20)))),
        ([Raising()], ()),
    ],
)
def test_tags(tags: Any, kept: tuple[str, ...]) -> None:
    assert DetailsBook(None, tags, "").tags == kept


def test_what_is_found_by_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "orig_argv", ["python", "train.py", "--api-key", "secret", "--name", "two words"]
    )
    monkeypatch.setenv("RANK", "3")
    fake = type(sys)("torch")
    fake.__version__ = "2.13.0"  # type: ignore[attr-defined]
    version = type(sys)("torch.version")
    version.cuda = "13.0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", fake)
    monkeypatch.setitem(sys.modules, "torch.version", version)
    found = DetailsBook(None, (), "why").message()
    assert found.command == "python train.py --api-key '***' --name 'two words'"
    assert (found.directory, found.notes, found.environment["RANK"]) == (str(tmp_path), "why", "3")
    assert (found.packages["torch"], found.packages["CUDA"]) == ("2.13.0", "13.0")
    assert found.packages["hoptui"] == hoptui.__version__
    assert found.host
    assert found.user
    assert found.python == sys.version.split()[0]
    assert len(details.command(["x" * 9000])) == details.LONGEST_COMMAND


def test_no_package_is_imported_to_ask_for_its_version() -> None:
    class Lazy(type(sys)):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    assert details.packages({"transformers": Lazy("transformers"), "torch": None}) == {
        "hoptui": hoptui.__version__
    }


@pytest.mark.parametrize("config", [5, "text", Raising(), Looping(), {"a": Raising()}, Broken()])
def test_connect_takes_any_config(off: None, config: Any) -> None:
    run = hoptui.connect("unit", config=config, tags=config, notes=config if isinstance(config, str) else "")
    run.summary["x"] = config
    assert isinstance(run_state(run).details.message(), RunDetails)
