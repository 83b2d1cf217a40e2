"""The first thing that Python imports in a process of `hoptui run`.

Python imports one `sitecustomize` at its start: the first on its path. This one registers a finder of modules
and then imports the `sitecustomize` that it hides, if there is one. The finder calls `hoptui.injection` once
torch or a framework has been imported. A process that imports neither pays for this file alone. So it imports
nothing that Python has not imported by then.

The file must run in every version of Python that a child process may have.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

VARIABLE = "_HOPTUI_RUN"
"""Set by `hoptui run`. Without it, this process is not part of a run: its parent removed the variable."""
FRAMEWORKS = {
    "accelerate": "accelerate",
    "lightning.pytorch": "lightning",
    "pytorch_lightning": "lightning",
    "ray.train.torch": "ray",
    "stable_baselines3": "sb3",
    "torchtitan.trainer": "torchtitan",
    "transformers.trainer": "transformers",
}
"""The module that shows that a script trains with a framework, and the adapter in `hoptui.integrations`."""
OPTIMIZERS = ("fastai.optimizer", "keras.src.backend.torch.optimizers.torch_parallel_optimizer")
"""Modules with optimizers that are not those of torch: see `hoptui.injection.optimizers.STEPS`."""


class ImportWatcher:
    """A finder that calls `hoptui.injection` after certain modules have been imported.

    It finds what the finders behind it find, with the same specification and the same loader. Until the
    module has run, the loader's `exec_module` is a function that calls the original and then `imported`.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = set(names)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """See importlib.abc.MetaPathFinder."""
        if name not in self.names:
            return None
        for finder in tuple(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                self._watch(spec.loader, name)
                return spec
        return None

    def _watch(self, loader: Any, name: str) -> None:
        """Call `imported` once `loader` has run the module. A module that raises is imported again later."""
        run: Any = getattr(loader, "exec_module", None)

        def exec_module(module: Any) -> None:
            vars(loader).pop("exec_module", None)
            run(module)
            self._imported(name)

        if run is not None:
            try:
                loader.exec_module = exec_module
            except (AttributeError, TypeError):  # a loader without attributes: this module is not watched
                return

    def _imported(self, name: str) -> None:
        if name not in self.names:
            return
        self.names.discard(name)
        try:
            injection().imported(name, FRAMEWORKS.get(name))
        except Exception as error:  # an error of hoptui must not reach the script
            self.names.clear()
            first = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
            if first == "0" and sys.stderr is not None:
                sys.stderr.write(f"hoptui: this run is not shown: {type(error).__name__}: {error}\n")


class OwnPackages:
    """A finder of certain top-level packages, each in a directory of its own. It is asked last.

    So an interpreter that lacks hoptui imports the hoptui of the command, and nothing
    else from its directory.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self.places = places

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """See importlib.abc.MetaPathFinder."""
        if path is not None or name not in self.places:
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [self.places[name]])


def injection() -> Any:
    """Return `hoptui.injection`: that of this interpreter if it has one, else that of the command."""
    try:
        import hoptui.injection as found
    except ImportError:
        if "hoptui" in sys.modules:
            raise
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(FILE))))
        sys.meta_path.append(OwnPackages({"hoptui": os.path.dirname(package)}))
        import hoptui.injection as found
    return found


def _next() -> None:
    """Import the `sitecustomize` that this one hides. What it raises is shown as without hoptui."""
    here = os.path.dirname(FILE)
    sys.path[:] = [place for place in sys.path if place != here]
    sys.path_importer_cache.pop(here, None)
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own


FILE = __file__
if os.environ.get(VARIABLE) and os.environ.get("HOPTUI", "").lower() not in ("off", "0", "no", "false"):
    sys.meta_path.insert(0, ImportWatcher(("torch", *FRAMEWORKS, *OPTIMIZERS)))
_next()
