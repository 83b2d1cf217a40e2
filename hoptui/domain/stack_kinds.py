"""What a stack is doing, by the packages and functions in it. One entry of a table per library.

A kind is decided in this order:

1. A context: the outermost frame of a library that loads data, simulates an environment, saves, compiles,
   evaluates or logs, or of a function of the script that is named after saving or evaluation. What it calls
   belongs to it: JSON in a data set is input.
2. The innermost frame that waits for a GPU, copies to one, or communicates between ranks.
3. The innermost frame that computes.
4. The innermost function or file of the script that is named after data, environments or logs.
5. A general library, such as `json`, that writes or reads; functions of torch, and operators, which are those
   of tensors: numbers of Python take no time.
6. Otherwise the script's own Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import PurePath
from typing import Literal, NamedTuple

from hoptui.domain.stacks import Stack, StackFrame

Kind = Literal[
    "wait", "copy", "collective", "compute", "input", "environment", "save", "log", "compile", "evaluate",
    "paused", "script",
]  # fmt: skip
"""What a thread does: it waits for the GPU, copies to it, communicates, computes (on a GPU: launches), loads
data, simulates, saves, logs, compiles, evaluates, is paused, or runs Python of the script."""


class Rule(NamedTuple):
    """Frames of a kind: those of files below `path`, if there are names only functions and calls so named.

    `path` is relative to the folder of packages, such as `torch/utils/data`. An empty one stands for calls
    from any file.
    """

    kind: Kind
    path: str
    names: frozenset[str] = frozenset()

    def matches(self, path: str, frame: StackFrame) -> bool:
        """Whether it describes this frame, whose file is `path` below the folder of packages."""
        if not self.path:
            return (
                frame.call.rpartition(".")[2] in self.names
                or frame.call.partition(".")[0] + ".*" in self.names
            )
        if path != self.path and not path.startswith((self.path + "/", self.path + ".")):
            return False
        called = {frame.call.rpartition(".")[2], frame.function.rpartition(".")[2]}
        return not self.names or not called.isdisjoint(self.names)


def _rules(kind: Kind, *paths: str, names: str = "") -> tuple[Rule, ...]:
    return tuple(Rule(kind, path, frozenset(names.split())) for path in paths)


CONTEXTS: tuple[Rule, ...] = (
    *_rules("paused", "hoptui/sdk/iteration", names="_wait_while_paused"),
    *_rules(
        "compile", "torch/_dynamo/convert_frame", "torch/_dynamo/eval_frame", names="_compile compile_inner"
    ),
    *_rules(
        "compile", "torch/_inductor", "torch/_functorch/aot_autograd", "triton/compiler", "jax/_src/pjit"
    ),
    *_rules("save", "torch/serialization", names="save _save _legacy_save"),
    *_rules("save", "torch/distributed/checkpoint", "safetensors", "orbax"),
    *_rules("save", "transformers/trainer", names="_save_checkpoint save_model _save"),
    *_rules(
        "save", "lightning/pytorch/callbacks/model_checkpoint", "pytorch_lightning/callbacks/model_checkpoint"
    ),
    *_rules("input", "torch/utils/data", "torchdata", "datasets", "webdataset", "streaming", "ffcv"),
    *_rules("input", "nvidia/dali", "torchvision/transforms", "torchvision/datasets", "torchvision/io"),
    *_rules("input", "PIL", "cv2", "albumentations", "decord", "av", "torchaudio", "librosa", "soundfile"),
    *_rules("input", "tokenizers", "sentencepiece", "tiktoken", "torch_geometric/loader"),
    *_rules("input", "transformers/data", "transformers/tokenization_utils_base", "timm/data"),
    *_rules("environment", "gymnasium", "gym", "envpool", "mujoco", "dm_control", "pettingzoo", "procgen"),
    *_rules("environment", "ale_py", "brax", "pufferlib", "stable_baselines3/common/vec_env"),
    *_rules("log", "wandb", "tensorboard", "torch/utils/tensorboard", "tensorboardX", "mlflow", "comet_ml"),
    *_rules("log", "neptune", "clearml", "aim", "tqdm", "rich", "logging", "loguru", "swanlab"),
    *_rules("evaluate", "transformers/trainer", names="evaluate evaluation_loop _evaluate"),
    *_rules("evaluate", "lightning/pytorch/loops/evaluation_loop", "pytorch_lightning/loops/evaluation_loop"),
    *_rules("evaluate", "stable_baselines3/common/evaluation"),
)
"""Libraries to which everything belongs that they call."""

INNER: tuple[Rule, ...] = (
    *_rules(
        "wait", "", names="synchronize _cuda_synchronize item tolist nonzero _local_scalar_dense cpu numpy"
    ),
    *_rules("wait", "torch/cuda/streams", "torch/cuda/__init__", names="synchronize wait"),
    *_rules("collective", "torch/distributed/distributed_c10d", "deepspeed/comm", "horovod", "mpi4py"),
    *_rules("collective", "", names="all_reduce all_gather reduce_scatter broadcast barrier allreduce"),
    *_rules("copy", "", names="to cuda copy_ pin_memory"),
)
"""What waits or moves data, found from the innermost frame outwards."""

COMPUTE: tuple[Rule, ...] = (
    *_rules("compute", "torch/nn", "torch/autograd", "torch/optim", "torch/_tensor", "torch/functional"),
    *_rules(
        "compute",
        "torch/amp",
        "torch/_ops",
        "torch/_refs",
        "torch/distributions",
        "torch/linalg",
        "torch/fft",
    ),
    *_rules(
        "compute", "triton/runtime", "flash_attn", "xformers", "apex", "bitsandbytes", "transformer_engine"
    ),
    *_rules("compute", "transformers/models", "transformers/modeling_utils", "transformers/optimization"),
    *_rules(
        "compute", "timm/models", "timm/layers", "timm/optim", "diffusers/models", "diffusers/schedulers"
    ),
    *_rules(
        "compute",
        "torchvision/models",
        "torchvision/ops",
        "torch_geometric/nn",
        "peft/tuners",
        "accelerate/optimizer",
    ),
    *_rules("compute", "stable_baselines3/common/policies", "stable_baselines3/common/torch_layers"),
)
GENERAL: tuple[Rule, ...] = (
    *_rules("save", "", names="fsync pickle.* shutil.*"),
    *_rules("log", "json", names="dump dumps encode iterencode default"),
    *_rules(
        "input", "json", "csv", "queue", "multiprocessing/queues", "multiprocessing/pool", "urllib", "http"
    ),
    *_rules("log", "", names="dump dumps write print writerow flush"),
    *_rules("save", "pickle", "shutil"),
    *_rules("input", "", names="read readline readinto loads load"),
    *_rules("wait", "", names="float int bool"),
    *_rules("compute", "", names="torch.* F.* matmul mm bmm addmm conv2d softmax log_softmax relu gelu"),
    *_rules("compute", "", names="add_ sub_ mul_ div_ zero_ fill_ clamp_ addcmul_ lerp_ index_select gather"),
    *_rules(
        "compute", "", names="scatter_add_ cumsum contiguous square rsqrt sigmoid tanh backward cat stack"
    ),
    *_rules("compute", "", names="+ - * / // % ** @ += -= *= /= @= < <= > >= == != [] & | ^ << >>"),
)
"""What a frame does if nothing else is known."""

SCRIPT_CONTEXTS: Mapping[Kind, str] = {
    "save": "save checkpoint snapshot",
    "evaluate": "evaluate evaluation eval validate validation",
}
SCRIPT_NAMES: Mapping[Kind, str] = {
    "input": "data dataset dataloader loader loading batch batches fetch read parse decode prefetch "
    "augment augmentation collate tokenize tokenizer preprocess preprocessing download",
    "environment": "env envs environment environments simulator simulate simulation physics gym",
    "log": "log logger logging report plot",
}
"""Words in the name of a file, class or function of the script."""
NOT_NAMES = frozenset(
    ("train", "step", "forward", "loss", "update", "learn", "optimize", "prob", "probs", "softmax")
)
"""Words of functions that are named after something else as well, such as `train_batch`."""

_SITE = re.compile(r"/(?:site|dist)-packages/")
_STANDARD = re.compile(r"/lib/python3\.\d+/")
_GENERATED = ("<frozen ", "<eval_with_key>")
"""How the names of files that do not exist begin. Code of `python -c` and of notebooks is the script's."""
_OWN = re.compile(r"/hoptui/(?:sdk|integrations|injection)/")


class CodeLine(NamedTuple):
    """The line that a stack stands for."""

    file: str
    line: int
    function: str


def package_path(file: str) -> str:
    """Return a file's path below the folder of packages or of the standard library; "" for a script's own."""
    for folder in (_SITE, _STANDARD):
        *before, path = folder.split(file)
        if before:
            return path
    return file[own.start() + 1 :] if (own := _OWN.search(file)) is not None else ""


def is_script(frame: StackFrame) -> bool:
    """Whether a frame is code of the user, not of a library."""
    return not package_path(frame.file) and not frame.file.startswith(_GENERATED)


@lru_cache(maxsize=4096)
def kind_of(stack: Stack) -> Kind:
    """Return what a thread with this stack is doing.

    Args:
        stack: The frames, the outermost first. Without any, the thread does the script's own.
    """
    frames = [(package_path(frame.file), frame) for frame in stack]
    for path, frame in frames:
        around = _first(CONTEXTS, [(path, frame)])
        if around is None and is_script(frame):
            around = next(_meant([frame.function.rpartition(".")[2]], SCRIPT_CONTEXTS), None)
        if around is not None:
            return around
    for rules in (INNER, COMPUTE):
        found = _first(rules, frames[::-1])
        if found is not None:
            return found
    mine = (frame for _, frame in reversed(frames) if is_script(frame))
    named = (kind for frame in mine for kind in _meant(_named(frame), SCRIPT_NAMES))
    libraries = [(path, frame) for path, frame in frames if path]
    return next(named, None) or _first(GENERAL, frames[-1:]) or _first(GENERAL, libraries[::-1]) or "script"


def place_of(stack: Stack) -> CodeLine:
    """Return the innermost line of the script; that of a library if there is none of the script."""
    frame = next((frame for frame in reversed(stack) if is_script(frame)), stack[-1])
    return CodeLine(frame.file, frame.line, frame.function)


def _named(frame: StackFrame) -> Iterator[str]:
    """Yield the names of a frame of the script: of its function, its class and its file."""
    yield from reversed(frame.function.split("."))
    yield PurePath(frame.file).stem


def _meant(names: Iterable[str], known: Mapping[Kind, str]) -> Iterator[Kind]:
    """Yield the kinds that names have a word of."""
    for name in names:
        words = set(_words(name))
        if words.isdisjoint(NOT_NAMES):
            yield from (kind for kind, of_kind in known.items() if not words.isdisjoint(of_kind.split()))


def _words(name: str) -> list[str]:
    """Return `["get", "batch"]` for `get_batch` and `GetBatch`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")


def _first(rules: Iterable[Rule], frames: Iterable[tuple[str, StackFrame]]) -> Kind | None:
    rules = tuple(rules)
    for path, frame in frames:
        for rule in rules:
            if rule.matches(path, frame):
                return rule.kind
    return None
