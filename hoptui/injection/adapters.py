"""The adapters of `hoptui.integrations`, for scripts that use a framework and do not know hoptui."""

from __future__ import annotations

import importlib
import json
import logging
import os
from importlib.util import find_spec

from hoptui.injection.dependencies import available
from hoptui.injection.launch import VARIABLE

log = logging.getLogger("hoptui")


def install(module: str, adapter: str) -> None:
    """Give every trainer of a framework its adapter. The optimizer steps are followed all the same.

    Args:
        module: The module of the framework that has been imported.
        adapter: The module in `hoptui.integrations`.
    """
    name = f"hoptui.integrations.{adapter}"
    if find_spec(name) is None:
        return
    settings = json.loads(os.environ[VARIABLE])
    try:
        with available(settings.get("places") or {}):
            importlib.import_module(name).install(settings.get("name"))
    except ImportError as error:  # the optimizer steps are left, and they report what hoptui lacks
        log.debug("hoptui: the adapter for %s is not used: %s", module, error)
    except Exception as error:
        log.warning("hoptui: the adapter for %s is not used: %s: %s", module, type(error).__name__, error)
