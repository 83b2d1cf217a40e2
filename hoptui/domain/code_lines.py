"""Lines of code: whose they are, and the function that they belong to."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from hoptui.domain.stacks import StackFrame

_SITE = re.compile(r"/(?:site|dist)-packages/")
_STANDARD = re.compile(r"/lib(?:64)?/python3\.\d+/")
_TYPED = ("<string>", "<stdin>", "<console>", "<ipython-input-", "<python-input-", "<command-", "<doctest ")
"""How the files of code begin that a user has typed: `python -c`, consoles and notebooks. Libraries generate
code too, and name it as they like: `<eval_with_key>.3`, `<class 'networkx.….argmap'> compilation 24`."""
_OWN = re.compile(r"/hoptui/(?:sdk|integrations|injection)/")
COMPILED = "cython"
"""Stands for the package of any function that Cython has compiled."""
REQUESTS = "c10d"
"""Stands for the package of a request of torch.distributed, whose `wait` is C code."""
HOST_PACKAGES = frozenset(
    (
        "numpy", "scipy", "sklearn", "pandas", "numba", "networkx", "skimage", "shapely", "nltk", "sacrebleu",
        "rouge_score", "jiwer", "rapidfuzz", "Levenshtein", "editdistance", "pycocotools", "pesq", "pystoi",
        COMPILED,
    )
)  # fmt: skip
"""Packages that compute with numbers of the host."""
_COMPREHENSION = re.compile(r"(?:\.<locals>\.<(?:listcomp|genexpr|dictcomp|setcomp|lambda)>)+$")


class CodeLine(NamedTuple):
    """A line of code, and its function."""

    file: str
    line: int
    function: str


def package_path(frame: StackFrame) -> str:
    """Return a file's path below the folder of packages or of the standard library; "" for a script's own."""
    return frame.file[frame.package_at :] if frame.package_at else shown_package_path(frame.file)


@lru_cache(maxsize=4096)
def shown_package_path(file: str) -> str:
    """Return the same as `package_path`, as far as the names of folders show it."""
    for folder in (_SITE, _STANDARD):
        *before, path = folder.split(file)
        if before:
            return path
    return file[own.start() + 1 :] if (own := _OWN.search(file)) is not None else ""


def is_script(frame: StackFrame) -> bool:
    """Whether a frame is code of the user, not of a library."""
    return not package_path(frame) and (frame.file[:1] != "<" or frame.file.startswith(_TYPED))


def enclosing_function(function: str) -> str:
    """Return the function that a comprehension or a lambda is written in; any other function itself."""
    return _COMPREHENSION.sub("", function) or function
