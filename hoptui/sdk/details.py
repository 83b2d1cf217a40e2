"""What describes a run: `run.config` and `run.summary`, and what the link thread finds by itself.

Values are taken over when the script sets them: they become plain JSON values of limited size, and nothing of
the script is called later. A value that cannot be read is shown by the name of its type.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import itertools
import os
import pathlib
import platform
import shlex
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import msgspec

from hoptui.domain.details import (
    LONGEST_NOTES,
    LONGEST_TAG,
    MOST_CONFIG_BYTES,
    MOST_SUMMARY_BYTES,
    MOST_TAGS,
    RunDetails,
)
from hoptui.domain.facts import clean_text
from hoptui.node.processes import user_name
from hoptui.protocol import VERSION
from hoptui.sdk.secrets import MASK, is_secret, masked, masked_arguments

MOST_ENTRIES = 2000
"""Entries of a configuration that are kept. Further ones are counted."""
LONGEST_NAME, LONGEST_VALUE, LONGEST_COMMAND = 200, 500, 2000
MOST_ITEMS = (64, 16, 4, 2)
"""Items of a list in a value that are kept, by depth. Deeper ones are shown by their types."""
DEEPEST = 6
EXACT = 1 << 53
"""Greater whole numbers are kept as texts: readers of JSON would round them."""

PACKAGES = (
    "torch", "torchvision", "torchaudio", "triton", "numpy", "jax", "jaxlib", "flax", "tensorflow", "keras",
    "transformers", "accelerate", "datasets", "tokenizers", "peft", "trl", "diffusers", "timm", "lightning",
    "pytorch_lightning", "torchmetrics", "torchtitan", "torchao", "deepspeed", "flash_attn", "xformers",
    "bitsandbytes", "vllm", "stable_baselines3", "gymnasium", "gym", "ray", "hydra", "omegaconf", "sklearn",
    "scipy", "pandas",
)  # fmt: skip
PLACES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK", "MASTER_ADDR",
    "MASTER_PORT", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NODEID", "SLURM_NNODES",
    "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
"""Variables that place a process among the ranks."""
_TEXTS = (
    pathlib.PurePath, decimal.Decimal, fractions.Fraction, uuid.UUID, datetime.date, datetime.time,
    datetime.timedelta, complex,
)  # fmt: skip
_TEXT_TYPES = ("torch.dtype", "torch.device", "torch.Size", "numpy.dtypes.", "numpy.dtype[")


class DescribedValues(MutableMapping[str, Any]):
    """Named values that describe a run. It is a mapping with attribute access: `run.config.lr`.

    Values are read back as they were set. What viewers see is a copy from that moment: nested mappings, data
    classes and namespaces are flattened (`optimizer.lr`), and secrets are masked. No call raises except for
    reading a name that does not exist.

    Example:
        ```python
        run.config.update({"lr": 3e-4, "model": {"layers": 12}}, seed=1)
        run.config["batch_size"] = 64
        run.config.compile = True
        assert run.config.lr == 3e-4 and run.config["model"]["layers"] == 12
        ```
    """

    __slots__ = ("_changed", "_shown", "_values")

    def __init__(self, changed: Callable[[], object]) -> None:
        object.__setattr__(self, "_changed", changed)
        object.__setattr__(self, "_values", {})
        object.__setattr__(self, "_shown", {})  # by name: its flat entries

    def __getitem__(self, name: str) -> Any:
        return self._values[str(name)]

    def __setitem__(self, name: str, value: Any) -> None:
        text = str(name)
        self._values[text] = value
        shown = {
            **self._shown,
            text: flat({text: value}),
        }  # replaced, never changed: the link thread reads it
        object.__setattr__(self, "_shown", shown)
        self._changed()

    def __delitem__(self, name: str) -> None:
        name = str(name)
        del self._values[name]
        object.__setattr__(self, "_shown", {key: one for key, one in self._shown.items() if key != name})
        self._changed()

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"there is no {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"there is no {name!r}") from None

    def __repr__(self) -> str:
        return repr(self._values)

    def update(self, values: Any = None, /, allow_val_change: bool | None = None, **others: Any) -> None:
        """Set several values: of a mapping, data class, namespace, or of any object with attributes.

        Args:
            values: The values by name. Pairs of a name and a value are accepted too.
            allow_val_change: Accepted as in wandb. Values may always change.
            others: Values as keyword arguments.
        """
        added = {**(entries(values) or {}), **others}
        self._values.update(added)
        shown = {**self._shown, **{name: flat({name: value}) for name, value in added.items()}}
        object.__setattr__(self, "_shown", shown)
        self._changed()

    def setdefaults(self, values: Any) -> None:
        """Set the values whose names do not exist yet.

        Args:
            values: See `update`.
        """
        self.update({k: v for k, v in (entries(values) or {}).items() if k not in self._values})

    def as_dict(self) -> dict[str, Any]:
        """Return the values as a new dict.

        Returns:
            The values by name, as they were set.
        """
        return dict(self._values)


def shown_values(values: DescribedValues) -> dict[str, Any]:
    """Return what viewers see of some values: flat names and JSON values. Safe in any thread."""
    shown: Mapping[str, Mapping[str, Any]] = values._shown
    return {name: value for flat_entries in shown.values() for name, value in flat_entries.items()}


def entries(values: object) -> dict[str, Any] | None:
    """Return the values of an object by name, None if it has none. Nothing is raised."""
    try:
        found = _entries(values)
        return None if found is None else {str(name): value for name, value in found.items()}
    except Exception:
        return None


def _entries(values: object) -> dict[Any, Any] | None:
    if values is None:
        return {}
    if isinstance(values, type):  # a class with its attributes as the configuration
        return {name: value for name, value in vars(values).items() if _is_value(name, value)}
    if isinstance(values, Mapping):
        return _of_mapping(values)
    if dataclasses.is_dataclass(values):
        return {f.name: getattr(values, f.name, None) for f in dataclasses.fields(values)}
    if isinstance(values, str | bytes | bytearray | enum.Enum):
        return None
    if isinstance(values, Sequence | Iterator):
        return dict(values)
    for name in ("to_dict", "model_dump", "flag_values_dict"):  # transformers, pydantic, absl
        method = getattr(type(values), name, None)
        if callable(method):
            return _of_mapping(method(values))
    own = getattr(values, "__dict__", None)
    return None if own is None else {name: value for name, value in own.items() if _is_value(name, value)}


def _of_mapping(values: Mapping[Any, Any]) -> dict[Any, Any]:
    found = {}
    for name in values:
        try:
            found[name] = values[name]
        except Exception as error:  # an interpolation of OmegaConf that cannot be resolved
            found[name] = f"<{type(error).__name__}>"
    return found


def _is_value(name: str, value: object) -> bool:
    return not name.startswith("_") and not callable(value) and not isinstance(value, property | staticmethod)


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested values with flat names, such as `optimizer.lr`, as JSON values without secrets."""
    found: dict[str, Any] = {}
    _flatten("", values, found, 0)
    return found


def _flatten(prefix: str, values: Mapping[str, Any], found: dict[str, Any], depth: int) -> None:
    for name, value in values.items():
        if len(found) >= MOST_ENTRIES:
            return
        path = clean_text(f"{prefix}{name}", LONGEST_NAME)
        inner = _nested(value) if depth < DEEPEST else None
        if inner:  # an empty one is a value
            _flatten(f"{path}.", inner, found, depth + 1)
        else:
            found[path] = MASK if is_secret(path.rpartition(".")[2], value) else _safely(value)


def _safely(value: object) -> Any:
    try:
        return plain(value)
    except Exception as error:  # an object of the script; an error of it must not reach the loop
        return f"<{type(error).__name__}>"


def _nested(value: object) -> dict[str, Any] | None:
    """Return what is inside a value that has names, None for one that has not."""
    if isinstance(value, Mapping) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return entries(value)
    if type(value).__name__ in ("Namespace", "SimpleNamespace", "DescribedValues"):
        return entries(value)
    return entries(value) if callable(getattr(type(value), "model_dump", None)) else None


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON has it, of limited size. Nothing of the script runs, nothing waits for a GPU."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value, depth + 1) if depth < DEEPEST else value.name
    if isinstance(value, int):
        number = int(value)
        return number if -EXACT <= number <= EXACT else _big(number)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, _TEXTS) or f"{type(value).__module__}.{type(value).__name__}".startswith(
        _TEXT_TYPES
    ):
        return _text(str(value))
    if isinstance(value, bytes | bytearray):
        return f"<{len(value)} bytes>"
    if isinstance(value, type) or callable(value):
        where = getattr(value, "__module__", "") or ""
        name = getattr(value, "__qualname__", None) or type(value).__qualname__
        return _text(name if where in ("builtins", "__main__", "") else f"{where}.{name}")
    return _collected(value, depth)


def _collected(value: Any, depth: int) -> Any:
    most = MOST_ITEMS[depth] if depth < len(MOST_ITEMS) else 0
    if most and isinstance(value, list | tuple | set | frozenset | range):
        more = len(value) - most
        shown = [plain(one, depth + 1) for one in itertools.islice(value, most)]
        return [*shown, f"… {more} more"] if more > 0 else shown
    if most and (inner := _nested(value)) is not None:
        kept = list(inner.items())[:most]
        return {
            clean_text(k, LONGEST_NAME): MASK if is_secret(k, one) else plain(one, depth + 1)
            for k, one in kept
        }
    if type(value).__module__.partition(".")[0] in ("torch", "numpy") and hasattr(value, "shape"):
        return _of_array(value, depth)
    return f"<{_text(type(value).__qualname__)}>"


def _of_array(value: Any, depth: int) -> Any:
    """Return the number of a numpy scalar or a tensor of one element in host memory. Others have a shape."""
    shape = tuple(int(side) for side in value.shape)
    device = getattr(getattr(value, "device", "cpu"), "type", "cpu")
    if all(side == 1 for side in shape) and device == "cpu" and depth < DEEPEST:
        number = value.item()
        if isinstance(number, bool | int | float | str):
            return plain(number, depth + 1)
    return f"<{type(value).__name__} {shape}>"


def _big(number: int) -> str:
    return str(number) if number.bit_length() < 4096 else "<a large whole number>"


def _text(text: str) -> str:
    shown = masked(clean_text(text[: LONGEST_VALUE + 1], LONGEST_VALUE + 1))
    return shown if len(shown) <= LONGEST_VALUE else f"{shown[: LONGEST_VALUE - 1]}…"


def fitting(values: Mapping[str, Any], most_bytes: int) -> tuple[dict[str, Any], int]:
    """Return the first entries that fit into a message, and how many are left out."""
    found: dict[str, Any] = {}
    left = most_bytes
    for name, value in values.items():
        left -= len(msgspec.msgpack.encode(name)) + len(msgspec.msgpack.encode(value))
        if left < 0:
            break
        found[name] = value
    return found, len(values) - len(found)


def clean_tags(tags: object) -> tuple[str, ...]:
    """Return tags as texts without repetitions. A single text is one tag."""
    given: Iterable[object] = (tags,) if isinstance(tags, str) else tags if isinstance(tags, Iterable) else ()
    try:
        found = [masked(clean_text(tag, LONGEST_TAG)).strip() for tag in given]
    except Exception:
        return ()
    return tuple(dict.fromkeys(filter(None, found)))[:MOST_TAGS]


class DetailsBook:
    """The details of one run. The training thread writes, the link thread reads. `revision` rises with each
    change.
    """

    def __init__(self, config: object, tags: object, notes: object) -> None:
        self.revision = 0
        self.config = DescribedValues(self._changed)
        self.summary = DescribedValues(self._changed)
        self.tags = clean_tags(tags)
        self.notes = masked(clean_text(notes or "", LONGEST_NOTES))
        try:
            self._directory = os.getcwd()  # noqa: PTH109 - a plain call, in the training thread
        except OSError:
            self._directory = ""
        if config is not None:
            self.config.update(config)

    def _changed(self) -> None:
        self.revision += 1

    def message(self) -> RunDetails:
        """Return the details as they are sent. The link thread calls this."""
        config, without = fitting(shown_values(self.config), MOST_CONFIG_BYTES)
        summary, without_summary = fitting(shown_values(self.summary), MOST_SUMMARY_BYTES)
        return RunDetails(
            config=config,
            summary=summary,
            config_left_out=without,
            summary_left_out=without_summary,
            tags=self.tags,
            notes=self.notes,
            command=command(sys.orig_argv),
            directory=clean_text(self._directory, LONGEST_VALUE),
            script=clean_text(script(self._directory), LONGEST_VALUE),
            python=platform.python_version(),
            packages=packages(sys.modules),
            host=clean_text(platform.node(), LONGEST_VALUE),
            user=clean_text(user_name(), LONGEST_VALUE),
            environment={
                name: clean_text(os.environ[name], LONGEST_VALUE) for name in PLACES if os.environ.get(name)
            },
        )


def command(arguments: Sequence[str]) -> str:
    """Return the whole command line without secrets. A long one is cut and ends with `…`."""
    short = [one if len(one) <= LONGEST_COMMAND else one[:LONGEST_COMMAND] for one in arguments]
    text = clean_text(shlex.join(masked_arguments(short)), LONGEST_COMMAND + 1)
    return text if len(text) <= LONGEST_COMMAND else f"{text[: LONGEST_COMMAND - 1]}…"


def script(directory: str) -> str:
    """Return the file that Python runs, as an absolute path; "" for none, as in a notebook."""
    file = vars(sys.modules.get("__main__", object)).get("__file__")
    return os.path.join(directory, file) if isinstance(file, str) and directory else ""  # noqa: PTH118


def packages(imported: Mapping[str, Any]) -> dict[str, str]:
    """Return the versions of packages that are imported, and of CUDA as torch was built for. Imports nothing.

    A module's own dict is read, because an attribute of a lazy module may import.
    """
    found: dict[str, str] = {"hoptui": VERSION}
    for name in PACKAGES:
        module = imported.get(name)
        version = getattr(module, "__dict__", {}).get("__version__") if module is not None else None
        if version is not None:
            found[name] = clean_text(version, 60)
    cuda = getattr(imported.get("torch.version"), "__dict__", {}).get("cuda")
    if isinstance(cuda, str):
        found["CUDA"] = clean_text(cuda, 60)
    return found
