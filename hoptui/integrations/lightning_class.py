"""The class of a callback, with the `Callback` of the package of Lightning that the process has imported."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys

FRAMEWORKS = ("lightning.pytorch", "pytorch_lightning")
"""The two names of the framework. Each has a `Callback` of its own."""


@functools.cache
def _class_with(cls: type, packages: tuple[str, ...]) -> type:
    bases = tuple(importlib.import_module(package).Callback for package in packages)
    return type(
        cls.__name__, (cls, *bases), {"__module__": cls.__module__, "__doc__": cls.__doc__, "_plain": cls}
    )


def framework_class(cls: type) -> type:
    """Return the class with the `Callback` of each package that the process has imported.

    Both packages have their own, and a trainer wants its own. A script may import this module before them.
    """
    loaded = tuple(package for package in FRAMEWORKS if package in sys.modules)
    if not loaded:
        found = [p for p in FRAMEWORKS if importlib.util.find_spec(p.partition(".")[0]) is not None]
        if not found:
            raise ImportError("neither lightning nor pytorch-lightning is installed")
        loaded = (found[0],)
    return _class_with(cls, loaded)
