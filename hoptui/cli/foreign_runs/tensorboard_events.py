"""Runs in event files of TensorBoard: one for each directory that has some."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hoptui.cli.foreign_runs.foreign_run import ForeignRun, ForeignRunError, merged

FILES = "*tfevents*"
NEEDED = "TensorBoard's reader is needed for event files: pip install 'hoptui[tensorboard]'"


def runs(root: Path) -> Iterator[ForeignRun]:
    """Read each directory at `root` and below it that has event files.

    Raises:
        ForeignRunError: TensorBoard is not installed.
    """
    found = [root] if root.is_file() else sorted(root.rglob(FILES))
    places = {path.parent: None for path in found if path.is_file()}
    if not places:
        return
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util import tensor_util
    except ImportError:
        raise ForeignRunError(NEEDED) from None
    for place in places:
        run = ForeignRun(place=place, name=_name(place, root))
        files = [path for path in found if path.parent == place]
        run.rows = merged(_scalars(files, EventFileLoader, tensor_util.make_ndarray, run))
        yield run


def _name(place: Path, root: Path) -> str:
    """The directory below the root; a name with a slash would be a path in other commands."""
    inside = () if place == root or root.is_file() else place.relative_to(root).parts
    return "-".join(inside) or place.resolve().name


def _scalars(
    files: list[Path], loader: Any, as_array: Any, run: ForeignRun
) -> Iterator[tuple[float, int, str, float]]:
    """The scalars of event files: wall time, step, tag and value. Damaged ends of files are counted."""
    for path in sorted(files):
        scalars: set[str] = set()  # tags whose tensors are scalars: only the first value of each says so
        try:
            for event in loader(str(path)).Load():
                for value in event.summary.value:
                    if value.metadata.plugin_data.plugin_name == "scalars":
                        scalars.add(value.tag)
                    if value.HasField("simple_value"):
                        yield event.wall_time, event.step, value.tag, float(value.simple_value)
                    elif value.tag in scalars and value.HasField("tensor"):
                        yield event.wall_time, event.step, value.tag, float(as_array(value.tensor).item())
        except Exception:  # the library names no errors; what was read before is kept
            run.unreadable += 1
