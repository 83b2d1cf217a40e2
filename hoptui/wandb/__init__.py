"""`import hoptui.wandb as wandb`: a training script that logs to Weights & Biases logs to hoptui.

It covers `init`, `log`, `config`, `summary`, `finish`, `run` and `alert`. Everything else that wandb has is
accepted and does nothing, which one warning for each name says. Nothing raises into the training script, and
nothing leaves this machine. wandb need not be installed.

Example:
    ```python
    import hoptui.wandb as wandb

    wandb.init(project="mnist", config={"lr": 3e-4})
    for step in range(3):
        wandb.log({"loss": 1.0 / (step + 1), "lr": wandb.config.lr})
    wandb.finish()
    ```
"""

from __future__ import annotations

import os
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import hoptui
from hoptui.sdk.details import DescribedValues, entries
from hoptui.wandb.placeholders import Errors, Placeholder, Util, unsupported, warn

__all__ = [
    "WandbRun",
    "WandbSummary",
    "alert",
    "config",
    "define_metric",
    "finish",
    "init",
    "log",
    "login",
    "run",
    "summary",
]

DISABLED = ("disabled", "dryrun-disabled")
RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
DEEPEST = 8

_current: WandbRun | None = None
_last: WandbRun | None = None
_names: dict[str, int] = {}  # how many runs of this process had this name
_lock = threading.RLock()


def init(
    entity: str | None = None,
    project: str | None = None,
    dir: Any = None,  # noqa: A002 - as wandb calls it
    id: str | None = None,  # noqa: A002
    name: str | None = None,
    notes: str | None = None,
    tags: Sequence[str] | None = None,
    config: Any = None,
    config_exclude_keys: Sequence[str] | None = None,
    config_include_keys: Sequence[str] | None = None,
    group: str | None = None,
    job_type: str | None = None,
    mode: str | None = None,
    resume: Any = None,
    reinit: Any = None,
    sync_tensorboard: bool | None = None,
    **others: Any,
) -> WandbRun:
    """Begin a run. An active run is returned, unless `reinit` asks for another one.

    `WANDB_PROJECT`, `WANDB_NAME`, `WANDB_RUN_ID`, `WANDB_RUN_GROUP`, `WANDB_JOB_TYPE`, `WANDB_NOTES`,
    `WANDB_TAGS` and `WANDB_MODE` count where an argument is None.

    Args:
        entity: Accepted, without effect.
        project: The project. It becomes the tag `project:NAME`.
        dir: Accepted, without effect.
        id: The id of the run. A run with the id of an earlier one that has ended is its next restart.
        name: The name that viewers show. None: the project, otherwise the name of the script.
        notes: What the run is for.
        tags: Words to find the run by.
        config: The configuration: a mapping, data class, namespace, or any object with attributes.
        config_exclude_keys: Names of the configuration to leave out.
        config_include_keys: The only names of the configuration to take.
        group: The group. It becomes the tag `group:NAME`.
        job_type: The type of job. It becomes the tag `job_type:NAME`.
        mode: `"disabled"`: record and show nothing. Other modes are the same.
        resume: Accepted. See `id`.
        reinit: True or `"finish_previous"`: finish the active run first. `"create_new"`: the same, because
            there is one run at a time.
        sync_tensorboard: Log what a `SummaryWriter` of torch or tensorboardX gets through `add_scalar`.
        others: Further arguments of wandb, without effect.

    Returns:
        The run.

    Example:
        ```python
        import hoptui.wandb as wandb

        with wandb.init(project="mnist", config={"lr": 3e-4}, tags=["baseline"]) as run:
            run.log({"loss": 0.5})
        ```
    """
    global _current, _last
    with _lock:
        if _current is not None:
            if not reinit or reinit == "return_previous":
                _current.config.update(_chosen(config, config_exclude_keys, config_include_keys))
                return _current
            _current.finish()
        environ = os.environ
        project = project or environ.get("WANDB_PROJECT") or ""
        group = group or environ.get("WANDB_RUN_GROUP") or ""
        job_type = job_type or environ.get("WANDB_JOB_TYPE") or ""
        given = tags if tags is not None else environ.get("WANDB_TAGS", "").split(",")
        own = [given] if isinstance(given, str) else [*given]
        places = {"project": project, "group": group, "job_type": job_type}
        made = WandbRun(
            name=_name(name or environ.get("WANDB_NAME") or str(project or "") or _script()),
            run_id=str(id or environ.get("WANDB_RUN_ID") or ""),
            project=str(project),
            entity=str(entity or ""),
            group=str(group),
            job_type=str(job_type),
            notes=str(notes or environ.get("WANDB_NOTES") or ""),
            tags=(*map(str, own), *(f"{place}:{value}" for place, value in places.items() if value)),
            config={**_taken_before(), **_chosen(config, config_exclude_keys, config_include_keys)},
            disabled=(mode or environ.get("WANDB_MODE", "")) in DISABLED,
        )
        _current = _last = made
        if sync_tensorboard:
            _TENSORBOARD.patch()
        return made


def log(
    data: Mapping[str, Any] | None = None, step: int | None = None, commit: bool | None = None, **others: Any
) -> None:
    """Log metrics. Each call is an iteration, or each new `step` if that is given.

    Nested mappings are flattened: `{"train": {"loss": 1}}` is `train.loss`. Values that are not numbers are
    counted, and viewers show how many there were. `env_steps`, `tokens` and `samples` give rates.

    Args:
        data: The metrics by name.
        step: The number of the iteration. It may not fall.
        commit: False: add the metrics to those of the next call.
        others: Further arguments of wandb, without effect.

    Example:
        ```python
        import hoptui.wandb as wandb

        wandb.init(project="mnist")
        wandb.log({"train/loss": 0.5, "samples": 256})
        wandb.log({"val": {"loss": 0.6, "accuracy": 0.9}}, step=10)
        ```
    """
    if _current is None:
        warn("log", "hoptui.wandb.log: call hoptui.wandb.init first; nothing is logged")
        return
    _current.log(data, step, commit)


def finish(exit_code: int | None = None, **others: Any) -> None:
    """End the run. It also ends with the process.

    Args:
        exit_code: Not 0: the run has failed.
        others: Further arguments of wandb, without effect.

    Example:
        ```python
        import hoptui.wandb as wandb

        wandb.init(project="mnist")
        wandb.finish()
        ```
    """
    if _current is not None:
        _current.finish(exit_code)


def alert(title: str = "", text: str = "", level: Any = None, **others: Any) -> None:
    """Put a warning on the time axis of the run.

    Args:
        title: The title.
        text: What happened.
        level: Accepted, without effect.
        others: Further arguments of wandb, without effect.

    Example:
        ```python
        import hoptui.wandb as wandb

        wandb.init(project="mnist")
        wandb.alert("loss is NaN", "at iteration 100")
        ```
    """
    if _current is not None:
        _current.alert(title, text)


def define_metric(name: str = "", *args: Any, **others: Any) -> Placeholder:
    """Do nothing: viewers show each metric by iteration and by time.

    Args:
        name: The metric.
        args: Further arguments of wandb, without effect.
        others: Further arguments of wandb, without effect.

    Returns:
        An object whose methods do nothing.

    Example:
        ```python
        import hoptui.wandb as wandb

        wandb.define_metric("val/*", step_metric="epoch")
        ```
    """
    return Placeholder("define_metric")


class WandbRun:
    """A run as wandb's scripts see it. `init` returns it.

    Attributes that wandb's run has and this one lacks are accepted and do nothing, which one warning for each
    says.

    Example:
        ```python
        import hoptui.wandb as wandb

        run = wandb.init(project="mnist", config={"lr": 3e-4})
        run.log({"loss": 0.5})
        run.summary["best"] = 0.5
        assert run.config.lr == 3e-4 and run.step == 1
        run.finish()
        ```
    """

    def __init__(
        self,
        *,
        name: str,
        run_id: str,
        project: str,
        entity: str,
        group: str,
        job_type: str,
        notes: str,
        tags: tuple[str, ...],
        config: dict[str, Any],
        disabled: bool,
    ) -> None:
        self.name = name
        self.project = project
        self.entity = entity
        self.group = group
        self.job_type = job_type
        self.notes = notes
        self.tags = tags
        self.url = ""
        self.dir = str(Path.cwd())
        self.offline = True
        self.disabled = disabled
        self.resumed = False
        self.start_time = time.time()
        self.sweep_id = None
        self.hoptui: hoptui.Run | None = None
        """The run of hoptui, to declare knobs and the total, for example. None if it is disabled."""
        known = run_id if RUN_ID.fullmatch(run_id) else ""
        self._id = run_id or secrets.token_hex(4)
        if not disabled:
            self.hoptui = hoptui.connect(
                name,
                # One process of several calls wandb, as a rule: there is nothing to agree on.
                ranks=None,
                resume={"run": known} if known else None,
                config=config,
                tags=tags,
                notes=notes,
            )
        self.config = self.hoptui.config if self.hoptui is not None else _values(config)
        self.summary = WandbSummary(self.hoptui.summary if self.hoptui is not None else _values({}))
        self._step = 0
        self._pending: dict[str, Any] = {}
        self._pending_step: int | None = None
        self._finished = False

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.hoptui.id if self.hoptui is not None else self._id

    @property
    def path(self) -> str:
        """`entity/project/id`, as far as they are known."""
        return "/".join(filter(None, (self.entity, self.project, self.id)))

    @property
    def step(self) -> int:
        """The number of the next iteration that is logged."""
        return self._step

    def log(
        self,
        data: Mapping[str, Any] | None = None,
        step: int | None = None,
        commit: bool | None = None,
        **others: Any,
    ) -> None:
        """See `hoptui.wandb.log`."""
        try:
            self._log(data, step, commit)
        except Exception as error:  # an error of hoptui must not reach the loop
            warn("log failed", f"hoptui.wandb.log: {type(error).__name__}: {error}")

    def _log(self, data: Any, step: Any, commit: bool | None) -> None:
        if self._finished:
            warn("log finished", "hoptui.wandb.log: the run is finished; nothing more is logged")
            return
        found = entries(data) if data is not None else {}
        if found is None:
            warn("log data", f"hoptui.wandb.log takes a dict, not {type(data).__name__}; nothing is logged")
            return
        at = _whole(step)
        if at is not None and at < self._step - 1:
            text = "hoptui.wandb.log: step %d is logged after step %d; such rows are left out"
            warn("log step", text % (at, self._step - 1))
            return
        with _lock:
            if at is not None and self._pending and at != self._pending_step:
                self._send()
            self._pending.update(_flat(found))
            self._pending_step = at if at is not None else self._pending_step
            if commit is not False:
                self._send()

    def _send(self) -> None:
        at = self._pending_step if self._pending_step is not None else self._step
        row, self._pending, self._pending_step = self._pending, {}, None
        self._step = max(self._step, at + 1)
        self.summary.logged(row)
        if self.hoptui is not None and row:
            self.hoptui.log(row, step=at)

    def alert(self, title: str = "", text: str = "", level: Any = None, **others: Any) -> None:
        """See `hoptui.wandb.alert`."""
        if self.hoptui is not None:
            self.hoptui.event(": ".join(filter(None, map(str, (title, text)))), level="warning")

    def define_metric(self, name: str = "", *args: Any, **others: Any) -> Placeholder:
        """See `hoptui.wandb.define_metric`."""
        return Placeholder("define_metric")

    def get_url(self) -> str:
        """Return "": there is no page of the run."""
        return ""

    def finish(self, exit_code: int | None = None, **others: Any) -> None:
        """See `hoptui.wandb.finish`."""
        global _current
        if self._finished:
            return
        with _lock:
            if self._pending:
                self._send()
            self._finished = True
            if _current is self:
                _current = None
                _TENSORBOARD.restore()
        if self.hoptui is not None:
            if exit_code:
                self.hoptui.close("exception", f"exit code {exit_code}")
            else:
                self.hoptui.close("finished")

    def __enter__(self) -> WandbRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self.hoptui is not None:
            self._finish_pending()
            self.hoptui.__exit__(kind, error, trace)
        self.finish()

    def _finish_pending(self) -> None:
        with _lock:
            if self._pending:
                self._send()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return unsupported(f"run.{name}")

    def __repr__(self) -> str:
        return f"<hoptui.wandb run {self.name!r} ({self.id})>"


class WandbSummary(MutableMapping[str, Any]):
    """The summary of the run. A name that the script has not set is the value that was logged last."""

    def __init__(self, values: DescribedValues) -> None:
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_logged", {})

    def logged(self, row: Mapping[str, Any]) -> None:
        """Take what was logged."""
        self._logged.update(row)

    def __getitem__(self, name: str) -> Any:
        return self._values[name] if name in self._values else self._logged[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._logged, **self._values})

    def __len__(self) -> int:
        return len({**self._logged, **self._values})

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"there is no {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __repr__(self) -> str:
        return repr(dict(self))


class _Tensorboard:
    """Logs what a `SummaryWriter` gets, while a run with `sync_tensorboard` is active."""

    MODULES = ("torch.utils.tensorboard.writer", "tensorboardX.writer")

    def __init__(self) -> None:
        self._patched: list[tuple[Any, Callable[..., Any]]] = []

    def patch(self) -> None:
        for module in self.MODULES:
            kind = getattr(sys.modules.get(module), "SummaryWriter", None)
            own = getattr(kind, "add_scalar", None)
            if kind is None or own is None:
                continue
            self._patched.append((kind, own))
            kind.add_scalar = _logging(own)
        if not self._patched:
            text = "hoptui.wandb: sync_tensorboard finds no SummaryWriter: import it before wandb.init"
            warn("sync_tensorboard", text)

    def restore(self) -> None:
        for kind, own in self._patched:
            kind.add_scalar = own
        self._patched = []


def _logging(own: Callable[..., Any]) -> Callable[..., Any]:
    def add_scalar(
        self: Any, tag: Any, scalar_value: Any, global_step: Any = None, *args: Any, **others: Any
    ) -> Any:
        if _current is not None:
            _current.log({str(tag): scalar_value}, _whole(global_step), commit=False)
        return own(self, tag, scalar_value, global_step, *args, **others)

    return add_scalar


_TENSORBOARD = _Tensorboard()


# helpers ----------------------------------------------------------------------------------------------------


def _flat(values: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and depth < DEEPEST:
            found.update(_flat(value, f"{prefix}{name}.", depth + 1))
        else:
            found[f"{prefix}{name}"] = value
    return found


def _values(values: Mapping[str, Any]) -> DescribedValues:
    found = DescribedValues(lambda: None)
    found.update(values)
    return found


def _chosen(config: Any, without: Sequence[str] | None, only: Sequence[str] | None) -> dict[str, Any]:
    found = entries(config)
    if found is None:
        text = f"hoptui.wandb.init: config is a {type(config).__name__}, not a dict; it is left out"
        warn("config", text)
        return {}
    return {
        name: value
        for name, value in found.items()
        if name not in (without or ()) and (not only or name in only)
    }


def _taken_before() -> dict[str, Any]:
    found = _before.as_dict()
    _before.clear()
    return found


def _name(wanted: str) -> str:
    """Return a name that no other run of this process has: a second run of a project is another run."""
    count = _names[wanted] = _names.get(wanted, 0) + 1
    return wanted if count == 1 else f"{wanted}-{count}"


def _script() -> str:
    return Path(sys.argv[0]).stem if sys.argv and sys.argv[0] not in ("", "-c") else "run"


def _whole(step: Any) -> int | None:
    try:
        return None if step is None else int(step)
    except (TypeError, ValueError, OverflowError):
        text = f"hoptui.wandb.log: step is a {type(step).__name__}, not a number; it is left out"
        warn("step", text)
        return None


_before = DescribedValues(lambda: None)
"""What the script sets before `init`. The configuration of the next run begins with it."""


class _WandbModule(ModuleType):
    """The module itself. `config`, `summary` and `run` are those of the active run."""

    @property
    def run(self) -> WandbRun | None:
        return _current

    @property
    def config(self) -> DescribedValues:
        return _last.config if _last is not None else _before

    @config.setter
    def config(self, values: Any) -> None:  # as in old examples of wandb: wandb.config = {...}
        self.config.update(values)

    @property
    def summary(self) -> Any:
        return _last.summary if _last is not None else {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return unsupported(name)


def login(*args: Any, **others: Any) -> bool:
    """Do nothing: there is nowhere to log in.

    Args:
        args: As in wandb, without effect.
        others: As in wandb, without effect.

    Returns:
        True.

    Example:
        ```python
        import hoptui.wandb as wandb

        assert wandb.login()
        ```
    """
    return True


run: WandbRun | None
config: DescribedValues
summary: WandbSummary
errors = Errors()
util = Util()
__version__ = hoptui.__version__
sys.modules[__name__].__class__ = _WandbModule
