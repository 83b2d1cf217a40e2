"""The package of what a line calls, where only the object itself says it.

`linear_sum_assignment(cost)` may be a function of SciPy or of the script. The global name of the call leads
to the object. No code of the object runs: its type says what it is.
"""

from __future__ import annotations

import sys
import sysconfig
from types import BuiltinFunctionType, CodeType, ModuleType
from typing import Any

from hoptui.domain.code_lines import COMPILED, HOST_PACKAGES, REQUESTS

CYTHON = "cython_function_or_method"
"""The type of all functions that Cython has compiled."""
WAIT = "wait"
"""The method of a request of torch.distributed, as `isend` returns it. It is C code."""
STANDARD = sysconfig.get_paths()["stdlib"]
"""The folder of the standard library."""
WAITING = (STANDARD, "torch/cuda/")
"""Parts of the paths of code that calls other methods of this name."""
USUAL = "np"
"""A name of a module that stays as it is written."""


def with_package(call: str, code: CodeType, module: str) -> str:
    """Return a call with the name of its package, if that is one of `HOST_PACKAGES`, or `REQUESTS`.

    `numba.soft_dtw` for `soft_dtw`, and `scipy.spatial.distance.cdist` for `distance.cdist`. In a process
    that has others to communicate with, `c10d.request.wait` for `request.wait`: a `wait` of Python has a
    frame of its own. Any other call stays as it is.

    Args:
        call: The call as it is written.
        code: The function that has the call.
        module: The name of the module that has the function, or "".
    """
    if call.rpartition(".")[2] == WAIT and not any(part in code.co_filename for part in WAITING):
        return f"{REQUESTS}.{call}" if _communicates() else call
    root, _, rest = call.partition(".")
    if root in ("", USUAL) or root in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        return call
    called = _names(sys.modules.get(module)).get(root)
    if issubclass(type(called), ModuleType):
        name = _names(called).get("__name__")
        known = isinstance(name, str) and name.partition(".")[0] in HOST_PACKAGES
        return f"{name}.{rest}" if known and rest else call
    package = "" if rest else _package(called)
    return f"{package}.{call}" if package in HOST_PACKAGES else call


def _communicates() -> bool:
    """Whether this process is in a group of processes of torch.distributed."""
    return bool(_names(sys.modules.get("torch.distributed.distributed_c10d")).get("_pg_map"))


def _names(module: object) -> dict[str, Any]:
    """Return the names in a module, without the code that a lazy one runs. Anything else has none."""
    if not issubclass(type(module), ModuleType):
        return {}
    found: dict[str, Any] = object.__getattribute__(module, "__dict__")
    return found


def _package(called: object) -> str:
    """Return the package of an object of C code, "" if it does not say it."""
    kind = type(called)
    if type.__getattribute__(kind, "__name__") == CYTHON:
        return COMPILED
    builtin = kind is BuiltinFunctionType
    name = called.__module__ if builtin else type.__getattribute__(kind, "__module__")
    return name.partition(".")[0] if isinstance(name, str) else ""
