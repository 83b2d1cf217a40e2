"""The names of devices, number formats, ways to compile and optimizers, for options and knobs.

Without torch, which takes seconds to import.
"""

from __future__ import annotations

from typing import Literal, get_args

DeviceName = Literal["auto", "cpu", "cuda"]

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

CompileMode = Literal["off", "default", "max-autotune"]
COMPILE_MODES: tuple[CompileMode, ...] = get_args(CompileMode)

ShardMode = Literal["none", "grad", "full"]

OptimizerName = Literal["adamw", "adamw8bit"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)
