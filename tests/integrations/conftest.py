"""Tests of the adapters. `make test-integrations` runs them in environments that have the frameworks."""

from __future__ import annotations

import importlib.util

FRAMEWORKS = ("accelerate", "lightning", "ray", "stable_baselines3", "transformers")

if any(importlib.util.find_spec(name) is None for name in FRAMEWORKS):
    collect_ignore_glob = ["test_*.py"]  # `make test-integrations` checks that none is missing there
