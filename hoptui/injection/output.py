"""The copy of what a process of `hoptui run --output` writes, from the import of torch or a framework on."""

from __future__ import annotations

import json
import logging
import os

from hoptui.injection.dependencies import available
from hoptui.injection.launch import VARIABLE


def copy() -> None:
    """Copy what this process writes from now on. A fault costs the copy."""
    try:
        with available(json.loads(os.environ[VARIABLE]).get("places") or {}):
            from hoptui.sdk import output_copy
        output_copy.install_if_asked(os.environ)
    except Exception as error:
        logging.getLogger("hoptui").warning("hoptui: output is not copied: %s", error)
