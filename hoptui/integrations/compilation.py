"""The knob `compile`: the modules that a framework trains run compiled by `torch.compile`, or eagerly.

A module keeps its class, its parameters and the names in its `state_dict`. What changes is the function that
`Module.__call__` calls, as `Module.compile` does it. Wrappers around the module and inside of it stay.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DataParallel, DistributedDataParallel

import hoptui

NAME = "compile"
BACKEND = "inductor"
"""What compiles the graphs."""
DYNAMO_LOGGER = "torch._dynamo.convert_frame"
"""Where the compiler warns that it runs a function eagerly."""
OLDEST_GPU = (7, 0)
"""The least compute capability that Triton has kernels for."""


class Compilation(logging.Filter):
    """Whether the modules of one training run compiled. Evaluation is eager: it has other shapes.

    The iteration after a command is eager and shows which parameters get a gradient. One that gets none would
    get zeros from a compiled module, and optimizers treat that in another way. The next iteration compiles,
    where a module is called. If that fails, the call is eager, and so are all later ones. The random
    generators and the buffers of the module are used once.

    With several ranks, all run eagerly if one cannot compile: the command then fails on all of them. A later
    compilation that fails on one rank, as for another shape, makes that rank alone eager. The ranks exchange
    the outcomes of commands, and no command waits then.

    Args:
        modules: What is compiled, if it is called. One may be a part of another.
        redirected: One of them whose `forward` a framework replaces for some calls. Those calls are eager.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], redirected: torch.nn.Module | None = None) -> None:
        super().__init__()
        self._modules, self._redirected = modules, redirected
        self._knob: Any = None
        self._inner: Callable[..., Any] | None = None
        self.on, self._pending, self._inside = False, False, False
        self._called = self._graphs = 0
        self._failure = ""
        self._hooks: list[Any] = []
        self._with_gradient: set[int] = set()

    def offer(self, run: hoptui.Run, reason: str) -> None:
        """Declare the knob, or the reason why there is none."""
        if reason := reason or obstacle(self._modules):
            run.decline(NAME, reason)
            return
        self._knob = run.knob(
            NAME,
            False,
            effect="speed",
            cost="rebuild",
            description="compile the model with torch.compile; the second iteration from now compiles",
            apply=self.set,
            read=lambda: self.on,
        )

    def set(self, on: bool) -> object:
        """Compile after the next iteration, or run eagerly from now on.

        Returns:
            `hoptui.LATER` if a compilation is to come.

        Raises:
            ValueError: this Python cannot compile. The text is for users.
        """
        if on == self.on:
            return hoptui.LATER if self._pending else None
        if on:
            self._observe()
            return hoptui.LATER
        self.restore()
        return None

    def end_step(self) -> None:
        """An optimizer step is over: what was to be compiled is compiled, or has failed."""
        if not self.on or self._knob is None:
            return
        failure = self._failure
        if self._hooks:
            failure = self._without_gradient()
            if not failure:
                self._compile()
                return
        elif not failure and self._pending:
            if not self._called:
                failure = "the training step has called no module that can be compiled"
            elif not self._graphs:
                failure = "torch.compile has found nothing to compile"
        if failure:
            self._knob.revert(False, failure)
        elif self._pending:
            self._pending = False
            self._knob.holds()

    def restore(self) -> None:
        """Leave the modules as they were before the training."""
        if not self.on:
            return
        self.on = self._pending = False
        self._unhook()
        logging.getLogger(DYNAMO_LOGGER).removeFilter(self)
        for module in self._modules:
            module._compiled_call_impl = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Note why the compiler gives up a function. The record is logged in any case."""
        if self._inside and record.levelno >= logging.WARNING:
            error = record.exc_info[1] if record.exc_info else None
            self._fail(error or record.getMessage())
        return True

    def _observe(self) -> None:
        """Note which parameters get a gradient."""
        from torch._dynamo.eval_frame import is_dynamo_supported

        if not is_dynamo_supported():
            raise ValueError("torch.compile does not support this version of Python")
        self.on = self._pending = True
        self._failure = ""
        self._with_gradient.clear()
        for _, parameter in self._trained():
            hooked: Any = parameter  # torch declares no types for its hooks
            self._hooks.append(hooked.register_post_accumulate_grad_hook(self._note_gradient))

    def _note_gradient(self, parameter: torch.nn.Parameter) -> None:
        self._with_gradient.add(id(parameter))

    def _trained(self) -> list[tuple[str, torch.nn.Parameter]]:
        found = (named for module in self._modules for named in module.named_parameters())
        return [(name, parameter) for name, parameter in found if parameter.requires_grad]

    def _without_gradient(self) -> str:
        """Return why the modules are not to be compiled, "" if all parameters have got a gradient."""
        self._unhook()
        missing = [name for name, each in self._trained() if id(each) not in self._with_gradient]
        if not missing:
            return ""
        return f"{missing[0]} got no gradient in the last step, and would get zeros from a compiled model"

    def _unhook(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _compile(self) -> None:
        from torch import _dynamo

        self._inner = _dynamo.lookup_backend(BACKEND)
        self._called, self._graphs = 0, 0
        logging.getLogger(DYNAMO_LOGGER).addFilter(self)
        for module in self._modules:
            module._compiled_call_impl = self._guarded(module)

    def _guarded(self, module: Any) -> Callable[..., Any]:
        """Return what a module calls while it is compiled."""
        compiled = torch.compile(_own_frame(module), backend=self._backend)
        redirected = module is self._redirected

        def call(*args: Any, **kwargs: Any) -> Any:
            if (
                torch.compiler.is_compiling()
                or not module.training
                or (redirected and _is_redirected(module))
            ):
                return module._call_impl(*args, **kwargs)
            self._called += 1
            with self._suppressed():
                return compiled(*args, **kwargs)

        return call

    @contextmanager
    def _suppressed(self) -> Iterator[None]:
        """Run what cannot be compiled eagerly. The compiler then logs a warning."""
        from torch._dynamo import config

        self._inside = True
        try:
            with config.patch(suppress_errors=True):
                yield
        finally:
            self._inside = False

    def _backend(self, graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Callable[..., Any]:
        """Compile a graph, with its backward pass: an error there would come in the loop of the script."""
        from torch._functorch import config

        if self._failure or self._inner is None:
            return graph.forward
        try:
            with config.patch(force_non_lazy_backward_lowering=True):
                found: Callable[..., Any] = self._inner(graph, inputs, **options)
        except Exception as error:
            self._fail(error)
            return graph.forward
        self._graphs += 1
        return found

    def _fail(self, why: BaseException | str) -> None:
        if not self._failure:
            lines = str(why).strip().splitlines() or [""]
            kind = f"{type(why).__name__}: " if isinstance(why, BaseException) else ""
            self._failure = f"torch.compile failed: {kind}{lines[0]}"


def _own_frame(module: Any) -> Callable[..., Any]:
    """Return a function that calls a module, with its own code object.

    The compiler takes no frame of `torch.nn` as the first one. It limits how often a code object is compiled.
    """

    def forward(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    return types.FunctionType(
        forward.__code__.replace(), forward.__globals__, "forward", None, forward.__closure__
    )


def _is_redirected(module: torch.nn.Module) -> bool:
    return getattr(module.forward, "__func__", None) is not type(module).forward


def obstacle(modules: Iterable[torch.nn.Module]) -> str:
    """Return why modules cannot be compiled while they train, "" if they can be."""
    every = {id(part): part for module in modules for part in module.modules()}.values()
    parameters = [parameter for module in every for parameter in module.parameters(recurse=False)]
    if not parameters:
        return "the model has no module with parameters"
    if any(
        hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None for part in every
    ):
        return "the script compiles already"
    if any(
        isinstance(part, FullyShardedDataParallel) or hasattr(part, "set_requires_gradient_sync")
        for part in every
    ):
        return "it is not tested with FSDP"
    if any(hasattr(parameter, "device_mesh") for parameter in parameters):
        return "it is not tested with a model that is spread over ranks"
    if any(hasattr(part, "_hf_hook") for part in every) or len({p.device for p in parameters}) > 1:
        return "it is not tested with a model that is spread over devices"
    if any(getattr(part, "is_quantized", False) is True for part in every):
        return "it is not tested with quantized weights"
    return platform_obstacle(parameters[0].device)


def wrapper_obstacle(wrapped: object) -> str:
    """Return why the wrapper around a model prevents compilation, "" if it does not."""
    if isinstance(wrapped, FullyShardedDataParallel) or hasattr(wrapped, "set_requires_gradient_sync"):
        return "it is not tested with FSDP"
    if isinstance(wrapped, DataParallel):
        return "it is not tested with DataParallel"
    if isinstance(wrapped, DistributedDataParallel) and wrapped.static_graph:
        return "DistributedDataParallel has a static graph"
    if hasattr(wrapped, "_orig_mod"):
        return "the script compiles already"
    return ""


def platform_obstacle(device: torch.device) -> str:
    """Return why there is no compiler for a device, "" if there is one."""
    if device.type == "cpu":
        compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
        return "" if shutil.which(compiler) else f"torch.compile needs a C++ compiler: there is no {compiler}"
    if device.type != "cuda":
        return f"torch.compile is not tested on {device.type}"
    if importlib.util.find_spec("triton") is None:
        return "torch.compile needs Triton, which is not installed"
    if torch.version.hip is None and torch.cuda.get_device_capability(device) < OLDEST_GPU:
        return "Triton does not support this GPU"
    return ""
