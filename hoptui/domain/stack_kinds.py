"""What a stack is doing, by the packages and functions in it. One entry of a table per library.

A kind is decided in this order:

1. A context: the outermost frame of a library that loads data, simulates an environment, saves, compiles,
   evaluates or logs. What it calls belongs to it: JSON in a data set is input. Then a phase or a function of
   the script that is named after saving or evaluation.
2. The innermost frame that copies to a GPU, or communicates between ranks.
3. A phase that is named after data, or a function of the script that prepares data. What it computes belongs
   to it, unless a model does.
4. The innermost frame that waits for a GPU, then one that computes. What a model or a backward pass calls of
   NumPy, or of Python itself, is Python of the script.
5. The innermost phase, function or file of the script that is named after environments or logs. A method
   `step` or `reset` of a class is one of an environment. Tensors that are computed in a phase of environments
   stay what they are: a rollout has a policy, too.
6. A general library, such as `json`, that writes or reads; functions of torch, and operators, which are those
   of tensors: numbers of Python take no time.
7. Otherwise the script's own Python.

While the training thread waits for another thread, the frames of that one follow its own. What it loads,
simulates or saves is what is waited for.

In an evaluation, only the work of the model and its waiting count as evaluation. Python that scores what the
model has said is Python of the script.

What writes pictures, tables or other results saves. In an evaluation, or in a function that is named after
logs, it logs: there people look at them. `tqdm` passes on what another iterator makes, and what that does is
not its own. A logger that calls the function that trains only wraps it.

A thread that waits for another process, by a pipe or a pool, waits for input or for environments. Its place
says which, or that the run logs what environments give.

A callback of a framework is seen alone: neither the phase in which the framework calls it nor what calls it
says what it does. The name of a hook, such as `on_rollout_end`, says when it is called. No name of a callback
says that it loads or simulates, and its operators are those of numbers.

A function that trains, and all that call it, are not known by their names: `fit_dataset` and `train_env` load
nothing and simulate nothing. `TrainingCode` knows these functions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import takewhile
from pathlib import PurePath
from typing import Literal, NamedTuple

from hoptui.domain.code_lines import (
    HOST_PACKAGES,
    REQUESTS,
    CodeLine,
    enclosing_function,
    is_script,
    package_path,
)
from hoptui.domain.stacks import PHASE_FILE, Stack, StackFrame, other_thread_at
from hoptui.domain.training_code import MODULES, NOTHING_KNOWN, OPTIMIZERS, Place, TrainingCode

Kind = Literal[
    "wait", "copy", "collective", "compute", "input", "environment", "save", "log", "compile", "evaluate",
    "paused", "script",
]  # fmt: skip
"""What a thread does: it waits for the GPU, copies to it, communicates, computes (on a GPU: launches), loads
data, simulates, saves, logs, compiles, evaluates, is paused, or runs Python of the script."""


class Rule(NamedTuple):
    """Frames of a kind: those of files below `path`, if there are names only functions and calls so named.

    `path` is relative to the folder of packages, such as `torch/utils/data`. An empty one stands for calls
    from any file. A name with a dot, such as `ValLoop.run`, is that of one class alone.
    """

    kind: Kind
    path: str
    names: frozenset[str] = frozenset()

    def matches(self, path: str, frame: StackFrame) -> bool:
        """Whether it describes this frame, whose file is `path` below the folder of packages."""
        if not self.path:
            return (
                frame.call in self.names
                or frame.call.rpartition(".")[2] in self.names
                or frame.call.partition(".")[0] + ".*" in self.names
            )
        if path != self.path and not path.startswith((self.path + "/", self.path + ".")):
            return False
        of, _, function = frame.function.rpartition(".")
        called = {frame.call.rpartition(".")[2], function, f"{of.rpartition('.')[2]}.{function}"}
        return not self.names or not called.isdisjoint(self.names)


def _rules(kind: Kind, *paths: str, names: str = "") -> tuple[Rule, ...]:
    return tuple(Rule(kind, path, frozenset(names.split())) for path in paths)


TABLE_WRITERS = (
    "to_csv to_parquet to_feather to_pickle to_hdf to_sql to_json to_excel to_orc to_stata to_xml to_html"
)
"""Methods of tables that write them."""
CALLBACKS: tuple[Rule, ...] = (
    *_rules(
        "script",
        "lightning/pytorch/trainer/call",
        "pytorch_lightning/trainer/call",
        names="_call_callback_hooks",
    ),
    *_rules("script", "transformers/trainer_callback", names="call_event"),
    *_rules("script", "stable_baselines3/common/callbacks"),
    *_rules("script", "ignite/engine/engine", names="_fire_event"),
    *_rules("script", "mmengine/runner/runner", "mmengine/runner/_flexible_runner", names="call_hook"),
    *_rules("script", "fastai/learner", names="_call_one"),
    *_rules("script", "composer/core/engine", names="_run_callbacks _run_algorithms"),
    *_rules("script", "accelerate/accelerator", names="log"),
    *_rules("script", "ray/train/v2/_internal/execution/context", names="report"),
)
"""What calls the callbacks of a framework, and the trackers of Accelerate."""
HOOKS: tuple[Rule, ...] = (
    *_rules(
        "script",
        "lightning/pytorch/trainer/call",
        "pytorch_lightning/trainer/call",
        names="_call_lightning_module_hook",
    ),
)
"""What calls the hooks of a module, and its other methods. A hook is a callback, unless it prepares a
batch."""
WRAPPERS: tuple[Rule, ...] = (
    *_rules("log", "tqdm", names="__iter__ __next__ __aiter__ __anext__ tmap tzip"),
    *_rules("log", "rich/progress", names="track __iter__ __next__"),
    *_rules("log", "loguru/_logger", names="catch_wrapper"),
    *_rules("log", "mlflow/utils/autologging_utils", "comet_ml/monkey_patching", "clearml/binding"),
    *_rules("log", "wandb/agents"),
)
"""What passes on the elements of another iterator, or the call of a function that it has replaced. What it
calls does not belong to it."""
NESTED: tuple[Rule, ...] = (*_rules("evaluate", "ignite/engine/engine", names="Engine.run"),)
"""What evaluates if a callback calls it. Elsewhere it trains."""

WRITERS: tuple[Rule, ...] = (
    *_rules("save", "PIL", names="save"),
    *_rules("save", "imageio", "skimage/io", "tifffile", names="imwrite imsave mimwrite mimsave volwrite"),
    *_rules("save", "torchvision/utils", names="save_image"),
    *_rules("save", "torchvision/io", names="write_jpeg write_png write_video write_file"),
    *_rules("save", "json", "yaml", names="dump"),
    *_rules("save", "csv", names="writerow writerows writeheader"),
    *_rules("save", "pandas/core/generic", "pandas/core/frame", names=TABLE_WRITERS),
    *_rules("save", "polars", names="write_csv write_parquet write_ipc write_json write_ndjson sink_parquet"),
    *_rules("save", "pyarrow", names="write_table write_feather write_csv write_dataset"),
    *_rules("save", "scipy/io", names="savemat mmwrite write"),
    *_rules("save", "soundfile", "torchaudio", names="write save save_with_torchcodec"),
    *_rules("save", "h5py", names="create_dataset __setitem__ flush"),
    *_rules("save", "zarr", names="__setitem__ save save_array save_group"),
    *_rules("save", "nibabel", names="save to_filename"),
    *_rules("save", "pathlib", names="write_text write_bytes"),
)
WRITES: tuple[Rule, ...] = (*_rules("save", "", names="writerow writerows imwrite write_jpeg write_png"),)
"""What writes results, such as pictures and tables. It logs in an evaluation, or if a function of the script
is named after logs: then they are for people to look at."""
CONTEXTS: tuple[Rule, ...] = (
    *WRITERS,
    *_rules("paused", "hoptui/sdk/iteration", names="_wait_while_paused"),
    *_rules(
        "compile", "torch/_dynamo/convert_frame", "torch/_dynamo/eval_frame", names="_compile compile_inner"
    ),
    *_rules(
        "compile", "torch/_inductor", "torch/_functorch/aot_autograd", "triton/compiler", "jax/_src/pjit"
    ),
    *_rules("save", "torch/serialization", names="save _save _legacy_save"),
    *_rules("save", "torch/distributed/checkpoint", "orbax"),
    *_rules("save", "safetensors", names="save save_file save_model _flatten _tobytes"),
    *_rules("save", "joblib/numpy_pickle", names="dump"),
    *_rules(
        "save",
        "transformers/modeling_utils",
        "diffusers/models/modeling_utils",
        "diffusers/pipelines/pipeline_utils",
        "peft/peft_model",
        names="save_pretrained",
    ),
    *_rules("save", "numpy/lib", names="save savez savez_compressed _savez savetxt"),
    *_rules("save", "transformers/trainer", names="_save_checkpoint save_model _save"),
    *_rules("save", "stable_baselines3/common/save_util"),
    *_rules(
        "save", "lightning/pytorch/callbacks/model_checkpoint", "pytorch_lightning/callbacks/model_checkpoint"
    ),
    *_rules("save", "ray/train/v2/_internal/execution/context", names="_upload_checkpoint"),
    *_rules("save", "ray/train/_internal/storage", names="persist_current_checkpoint"),
    *_rules("log", "matplotlib", "seaborn", "plotly", "bokeh"),
    *_rules("input", "torch/utils/data", "torchdata", "datasets", "webdataset", "streaming", "ffcv"),
    *_rules("input", "nvidia/dali", "torchvision/transforms", "torchvision/datasets", "torchvision/io"),
    *_rules("input", "PIL", "cv2", "albumentations", "decord", "av", "torchaudio", "librosa", "soundfile"),
    *_rules("input", "tokenizers", "sentencepiece", "tiktoken", "torch_geometric/loader"),
    *_rules("input", "imgaug", "audiomentations", "torch_audiomentations", "kornia/augmentation", "torchio"),
    *_rules("input", "monai/data", "monai/transforms", "mmcv/transforms", "fairseq/data", "torchtext/data"),
    *_rules("input", "litdata", "petastorm", "deeplake", "grain", "tensorflow_datasets", "dgl/dataloading"),
    *_rules("input", "transformers/data", "transformers/tokenization_utils_base", "timm/data", "ray/data"),
    *_rules(
        "input",
        "ray/train/v2/_internal/execution/context",
        "ray/train/_internal/session",
        names="get_dataset_shard",
    ),
    *_rules("environment", "gymnasium", "gym", "envpool", "mujoco", "dm_control", "pettingzoo", "procgen"),
    *_rules("environment", "ale_py", "brax", "pufferlib", "stable_baselines3/common/vec_env"),
    *_rules("environment", "minigrid", "highway_env", "crafter", "nle", "metaworld", "robosuite", "vizdoom"),
    *_rules("environment", "gymnasium_robotics", "pybullet_envs", "mlagents_envs", "supersuit", "shimmy"),
    *_rules("environment", "torchrl/envs", "tianshou/env", "ray/rllib/env", "open_spiel", "smac", "traci"),
    *_rules("environment", "retro", "stable_retro", "chess", "sapien", "panda_gym"),
    *_rules("log", "wandb", "tensorboard", "torch/utils/tensorboard", "tensorboardX", "mlflow", "comet_ml"),
    *_rules("log", "neptune", "clearml", "aim", "tqdm", "rich", "logging", "loguru", "swanlab"),
    *_rules("log", "stable_baselines3/common/logger"),
    *_rules("log", "lightning/pytorch/loggers", "pytorch_lightning/loggers", "lightning/fabric/loggers"),
    *_rules(
        "log", "dvclive", "visdom", "trackio", "sacred", "structlog", "absl/logging", "prometheus_client"
    ),
    *_rules("log", "accelerate/tracking", names="log log_images log_table log_figure log_artifact"),
    *_rules("log", "ray/train/v2/_internal/execution/context", names="_wait_then_report"),
    *_rules("log", "ray/train/_internal/session", names="_report_training_result"),
    *_rules("evaluate", "transformers/trainer", names="evaluate evaluation_loop _evaluate"),
    *_rules("evaluate", "lightning/pytorch/loops/evaluation_loop", "pytorch_lightning/loops/evaluation_loop"),
    *_rules("evaluate", "stable_baselines3/common/evaluation", "sb3_contrib/common/maskable/evaluation"),
    *_rules("evaluate", "mmengine/runner/loops", names="ValLoop.run TestLoop.run"),
    *_rules("evaluate", "fastai/learner", names="_do_epoch_validate"),
    *_rules("evaluate", "composer/trainer/trainer", names="_eval_loop _eval_train_metrics"),
    *_rules("evaluate", "torchtitan/components/validate", names="validate"),
    *_rules("evaluate", "ultralytics/engine/validator", "detectron2/evaluation/evaluator"),
    *_rules("evaluate", "sentence_transformers/evaluation"),
)
"""Libraries to which everything belongs that they call."""

MOVES: tuple[Rule, ...] = (
    *_rules("collective", "torch/nn/parallel/distributed", names="_distributed_broadcast_coalesced"),
    *_rules("collective", "torch/distributed/distributed_c10d", "deepspeed/comm", "horovod", "mpi4py"),
    *_rules("collective", "torch/distributed/_functional_collectives", "torch/distributed/nn/functional"),
    *_rules(
        "collective",
        "ray/train/v2/_internal/execution/context",
        names="_sync_checkpoint_dir_name_across_ranks",
    ),
    *_rules("collective", "", names="all_reduce all_gather reduce_scatter broadcast barrier allreduce"),
    *_rules("collective", "", names=f"{REQUESTS}.*"),
    *_rules("copy", "", names="to cuda copy_ pin_memory"),
)
WAITS: tuple[Rule, ...] = (
    *_rules(
        "wait", "", names="synchronize _cuda_synchronize item tolist nonzero _local_scalar_dense cpu numpy"
    ),
    *_rules("wait", "torch/cuda/streams", "torch/cuda/__init__", names="synchronize wait"),
)
"""What moves data, and what waits, found from the innermost frame outwards."""
FRAMEWORK_WAITS: tuple[Rule, ...] = (
    *_rules(
        "wait",
        "lightning/pytorch/loops/training_epoch_loop",
        "pytorch_lightning/loops/training_epoch_loop",
        names="_broadcast_sigterm_tensor",
    ),
    *_rules("wait", "transformers/trainer", "accelerate/accelerator", "trl/trainer", names="bool float int"),
)
"""What waits for the GPU in a framework: a tensor is read between two iterations, which may be in its phase of
data, or outside of the functions that train."""

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
        "torch/cuda/graphs",
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
MODELS = (MODULES, OPTIMIZERS, "torch/autograd/graph")
"""Where a model computes, or is trained."""
HOST_LIBRARIES = (
    *sorted(HOST_PACKAGES), "torchmetrics/text", "torchmetrics/functional/text",
    "torchmetrics/functional/audio", "difflib", "re", "statistics", "heapq", "bisect", "random", "fractions",
)  # fmt: skip
"""What computes with numbers of the host, also where a model calls it."""
HOST_MODULES = frozenset(("np", "math", "heapq", "bisect", "random", "re")) | HOST_PACKAGES
HOST_CALLS = ("max", "min", "len", "sorted", "range", "zip", "enumerate", "isinstance", "str", "ord", "chr")
"""Modules and functions of Python that know no tensors, as they are called."""
OPERATORS = (
    "+", "-", "*", "/", "//", "%", "**", "@", "+=", "-=", "*=", "/=", "@=", "<", "<=", ">", ">=", "==", "!=",
    "[]", "&", "|", "^", "<<", ">>",
)  # fmt: skip
STEPPED = (
    "env.step env.reset envs.step envs.reset self.env.step self.env.reset self.envs.step self.envs.reset "
    "mj_step mj_step1 mj_step2 mj_forward stepSimulation simulationStep"
)
"""Calls of C code that step an environment, or a simulator."""
GENERAL: tuple[Rule, ...] = (
    *_rules("input", "", names="pickle.load pickle.loads"),
    *_rules("save", "", names="fsync fdatasync os.sync os.replace os.rename pickle.* shutil.*"),
    *_rules("save", "pathlib", names="replace rename"),
    *_rules("save", "", names="compress savez savez_compressed tobytes write_bytes tofile"),
    *WRITES,
    *_rules("save", "", names="executemany commit"),
    *_rules("log", "json/encoder"),
    *_rules("log", "json", names="dumps"),
    *_rules("input", "pickle", "torch/serialization", names="load loads _load _loads _legacy_load"),
    *_rules(
        "input",
        "json",
        "csv",
        "queue",
        "asyncio/queues",
        "multiprocessing/queues",
        "multiprocessing/pool",
        "urllib",
        "http",
    ),
    *_rules("log", "", names="dump dumps write print flush savefig save_image"),
    *_rules("save", "pickle", "shutil"),
    *_rules("input", "wave", "gzip", "bz2", "lzma", "zipfile", "tarfile", "html/parser", "xml"),
    *_rules("input", "numpy/lib", names="load loadtxt genfromtxt fromfile open_memmap"),
    *_rules("input", "h5py", "zarr", "lmdb", "pyarrow", "fsspec", "s3fs", "gcsfs", "boto3", "botocore"),
    *_rules("input", "requests", "urllib3", "httpx", "aiohttp", "smart_open", "polars/io", "xarray/backends"),
    *_rules("input", "pandas/io/parsers", "pandas/io/parquet", "pandas/io/pytables", "pandas/io/sql"),
    *_rules("input", "pandas/io/json", "pandas/io/excel", "pandas/io/feather_format", "pandas/io/pickle"),
    *_rules("input", "imageio", "skimage/io", "tifffile", "nibabel", "pydicom", "rasterio", "scipy/io"),
    *_rules("input", "sqlalchemy", "pymongo", "redis", "safetensors", "joblib/numpy_pickle"),
    *_rules("environment", "", names=STEPPED),
    *_rules("input", "", names="read readline readlines readinto readframes loads load loadtxt genfromtxt"),
    *_rules("input", "", names="decompress frombuffer fromfile unpack unpack_from iter_unpack b64decode"),
    *_rules(
        "input", "", names="fetchone fetchmany fetchall read_csv read_parquet imread imdecode recv_bytes"
    ),
    *_rules("input", "", names="encode_batch get_tensor cv2.*"),
    *_rules("wait", "", names="float int bool"),
    *_rules("script", "", names="tensor as_tensor from_numpy LongTensor FloatTensor IntTensor BoolTensor"),
    *_rules("compute", "", names="torch.* F.* matmul mm bmm addmm conv2d softmax log_softmax relu gelu"),
    *_rules("compute", "", names="add_ sub_ mul_ div_ zero_ fill_ clamp_ addcmul_ lerp_ index_select gather"),
    *_rules(
        "compute",
        "",
        names="to(dtype) scatter_add_ cumsum contiguous square rsqrt sigmoid tanh backward cat stack",
    ),
    *_rules("compute", "", names=" ".join(OPERATORS)),
)
"""What a frame does if nothing else is known."""

PROCESSES = ("multiprocessing/connection", "multiprocessing/pool", "concurrent/futures/process")
"""What waits for another process, which may do anything."""
QUEUES = ("multiprocessing/queues",)
"""What waits for another process that puts elements into a queue, as most loaders do."""
HELPERS = ("multiprocessing/pool", "multiprocessing/queues", "concurrent/futures/process")
"""What starts threads that hand over tasks and results. They say nothing of what other processes do."""
STARTERS = ("threading", "concurrent/futures/thread")
"""What starts what a thread runs."""
EVENT_LOOP = "asyncio/base_events"
"""The event loop of asyncio."""
RUNNERS = "asyncio/runners."
"""What starts an event loop. One of C code, such as that of uvloop, has no frame of its own."""
CAUSES: tuple[Kind, ...] = ("environment", "input", "save", "log", "collective", "compile", "evaluate")
"""What another thread does that says why the training thread waits for it."""
EVALUATES: tuple[Kind, ...] = ("compute", "wait", "copy", "collective", "evaluate")
"""What a thread does in an evaluation that is no Python of the script."""

SCRIPT_CONTEXTS: Mapping[Kind, str] = {
    "save": "save checkpoint ckpt persist backup archive",
    "evaluate": "evaluate evaluation eval validate validation",
}
SCRIPT_NAMES: Mapping[Kind, str] = {
    "input": "data dataset dataloader loader loading load batch minibatch minibatcher fetch read reader "
    "parse parser decode encode prefetch augment augmentation augmented collate collator tokenize tokenizer "
    "tokenization preprocess preprocessing transform crop mixup cutmix mosaic spectrogram mel mfcc featurize "
    "sampler replay corpus shard record feeder ingest iterator download",
    "environment": "env environment world simulator simulate simulation physics gym game board arena "
    "emulator episode rollout trajectory selfplay",
    "log": "logger logging report plot chart dashboard preview visualize visualizer visualization",
}
"""Words in the name of a file, class or function of the script, or of a phase. A plural counts too."""
PHASE_NAMES: Mapping[Kind, str] = {
    "input": "input",
    "environment": "sim play collect interact",
}
"""Further words in the name of a phase."""
HOST_NAMES = (
    "metric accuracy score bleu rouge meteor wer cer distance precision recall f1 auc match matching matcher "
    "nms iou overlap gae advantage discount search beam hungarian assignment histogram stat statistic "
    "summary ranking cluster clustering kmeans centroid nearest triplet"
)
"""Words for work of the host that is neither input nor an environment."""
CONVERSIONS = ("decode", "decoder", "encode", "transform", "parse")
"""Words of functions that convert. They convert data, unless the name has a word of `HOST_NAMES` or `RESULTS`
too: `beam_search_decode` converts what a model says."""
RESULTS = "ctc greedy viterbi prediction pred output logit caption hypothesis posterior"
"""Words for what a model says."""
LOGGED = (
    "metric stat loss row step result image histogram summary progress epoch train eval message line info "
    "state weight gradient grad param scalar table artifact figure"
)
"""Words after `log` in a name that is about logging: `log_prob` and `log_mel` are not."""
NOT_NAMES = frozenset(
    ("train", "step", "forward", "loss", "update", "learn", "optimize", "prob", "probs", "softmax")
)
"""Words of functions that are named after something else as well, such as `train_batch`."""
NOT_FILES = ("load", "loads")
"""Words of files that are named after something else, such as `load_test.py`."""
ENVIRONMENT_METHODS = frozenset(("step", "reset"))

_HOOK = re.compile(r"_?on_[a-z]")
_BATCH = re.compile(r"batch(?:es)?(?:er)?$")
Basis = Literal["known", "process", "before", "between", "after", "unknown"]
"""What a kind rests on. `known`: a library, a name, or the line of the loop itself. `process`: the thread
waits for another process, of which nothing is known. The rest is Python of the script. `before`,
`between` and `after`: its place in the function that trains. `unknown`: nothing says what it is for."""


class Assessment(NamedTuple):
    """What a thread does, and what this rests on. `other`: the thread that it waits for does it."""

    kind: Kind
    basis: Basis = "known"
    other: bool = False

    def part(self, stack: Stack) -> Stack:
        """Return the frames of a stack that this is about: without those of a thread that says nothing."""
        at = 0 if self.other else other_thread_at(stack)
        return stack[:at] if at else stack


def kind_of(stack: Stack, code: TrainingCode = NOTHING_KNOWN) -> Kind:
    """Return what a thread with this stack is doing.

    Args:
        stack: The frames, the outermost first. Without any, the thread does the script's own.
        code: The functions of the script that train.
    """
    return assess(stack, code).kind


@lru_cache(maxsize=4096)
def assess(stack: Stack, code: TrainingCode = NOTHING_KNOWN) -> Assessment:
    """Return what a thread with this stack is doing, and what this rests on."""
    at = other_thread_at(stack)
    if at and _hands_over(stack[at:]):
        return assess(stack[:at], code)
    if at:
        return _while_waiting(assess(stack[:at], code), assess(stack[at:], code))
    phases = [frame.function for frame in stack if frame.file == PHASE_FILE][::-1]
    frames = [(package_path(frame), frame) for frame in stack[len(phases) :]]
    calls = [i for i, called in enumerate(frames, 1) if _first(CALLBACKS, [called]) or _hooks(frames, i)]
    if calls:
        nested = [i for i, called in enumerate(frames, 1) if i > calls[0] and _first(NESTED, [called])]
        if nested:
            return _in_evaluation(tuple(frame for _, frame in frames[nested[0] :]), code)
        return Assessment(_in_callback(frames[calls[-1] :]))
    context, after = _context(frames, phases, code)
    if context == "evaluate":
        return _in_evaluation(tuple(frame for _, frame in frames[after:]), code)
    if context is not None:
        return Assessment(context)
    moves = _first(MOVES, frames[::-1])
    if moves is not None:
        return Assessment(moves)
    of_phase = _of_phase(phases)
    of_name = next((kind for frame in _own(frames, code) for kind in _about(frame, code)), None)
    named = of_phase or of_name
    works = _first(WAITS, frames[::-1]) or _first(COMPUTE, frames[::-1])
    if works == "compute" and computes_on_host(frames):
        return Assessment("script")
    if works is not None:
        prepares = (
            named == "input"
            and (of_phase or code)
            and not any(path.startswith(MODELS) for path, _ in frames)
            and _first(FRAMEWORK_WAITS, frames[-1:]) is None
        )
        return Assessment("input" if prepares else works)
    if named is not None and (named == of_name or named != "environment"):
        return Assessment(named)
    stems = [PurePath(frame.file).stem for frame in _own(frames, code) if not code.in_file(frame.file)]
    of_file = next(_meant(stems, SCRIPT_NAMES, (*NOT_NAMES, *NOT_FILES)), None)
    if of_file is not None and named is None:
        return Assessment(of_file)
    inner = frames[_training(frames, code) :]  # a worker of a pool may call the function that trains
    libraries = [(path, frame) for path, frame in inner if path]
    general = _first(GENERAL, frames[-1:]) or _first(GENERAL, libraries[::-1]) or "script"
    place = code.place(stack)
    if named is None and _waits_for_process(frames):
        return Assessment("script", place) if place == "between" else Assessment("input", "process")
    if general == "wait" and code and not (code.trains(frames[-1][1]) or _first(FRAMEWORK_WAITS, frames[-1:])):
        general = "script"  # numbers of Python, as the result of a model is read where it is trained
    if general == "compute" and frames and frames[-1][1].call in OPERATORS and _of_host(frames, code):
        general = "script"
    if general == "script" and named is None and _in_event_loop(frames):
        return Assessment("script", "unknown" if place == "elsewhere" else place)
    if named is not None and general != "compute":
        return Assessment(named)  # the phase of a rollout: environments, and a policy that computes
    if general == "script" or (general == "compute" and place == "before" and named is None):
        return Assessment("script", _basis(frames, phases, code, place))
    return Assessment(general)


def assess_all(stacks: Mapping[Stack, int], code: TrainingCode = NOTHING_KNOWN) -> dict[Stack, Assessment]:
    """Return what a thread with each of these stacks is doing.

    While it waits for another thread, tensors and Python of that thread are part of what else that does: the
    policy of a thread that plays is part of playing.

    Args:
        stacks: How often each stack was found.
        code: The functions of the script that train.
    """
    found = {stack: assess(stack, code) for stack in stacks}
    causes: dict[_Function, Counter[Kind]] = {}
    unclear: dict[Stack, _Function] = {}
    for stack, count in stacks.items():
        if (at := other_thread_at(stack)) and not _hands_over(stack[at:]):
            work = _started(stack[at:])
            kind = assess(stack[at:], code).kind
            if kind in CAUSES:
                causes.setdefault(work, Counter())[kind] += count
            else:
                unclear[stack] = work
    for stack, work in unclear.items():
        if work in causes:
            found[stack] = Assessment(causes[work].most_common(1)[0][0], other=True)
    return found


def place_of(stack: Stack) -> CodeLine:
    """Return the innermost line of the script; that of a library if there is none of the script."""
    frame = next((frame for frame in reversed(stack) if is_script(frame)), stack[-1])
    return CodeLine(frame.file, frame.line, frame.function)


_Function = tuple[str, str]
"""The file and the name of a function."""
_Frames = list[tuple[str, StackFrame]]
"""Frames with the path of their file below the folder of packages, "" for those of the script."""


def _context(frames: _Frames, phases: Iterable[str], code: TrainingCode) -> tuple[Kind | None, int]:
    """Return the kind of all that a library, a phase or a function of the script calls, if it has one.

    The number of frames up to this function comes with it.
    """
    trains = _training(frames, code)
    for i, (path, frame) in enumerate(frames, 1):
        around = None if _first(WRAPPERS, [(path, frame)]) else _first(CONTEXTS, [(path, frame)])
        if around == "log" and i < trains:
            around = None  # it calls the function that trains
        if around == "save" and _first(WRITERS, [(path, frame)]) and _shows(frames[:i], code):
            around = "log"
        of, _, name = frame.function.rpartition(".")
        if around is None and is_script(frame) and not code.trains(frame):
            around = next(_meant([of if _HOOK.match(name) else name], SCRIPT_CONTEXTS), None)
        if around is not None:
            return around, i
    return next(_meant(phases, SCRIPT_CONTEXTS, ()), None), 0


def _training(frames: _Frames, code: TrainingCode) -> int:
    """Return the number of frames up to the innermost function that trains, 0 without one."""
    return max((i for i, (_, frame) in enumerate(frames, 1) if code.trains(frame)), default=0)


def _hooks(frames: _Frames, number: int) -> bool:
    """Whether the first frames, so many, end with what calls a hook, and the next one is the hook."""
    if number == len(frames) or _first(HOOKS, [frames[number - 1]]) is None:
        return False
    name = frames[number][1].function.rpartition(".")[2]
    return _HOOK.match(name) is not None and not name.endswith("_batch_transfer")


def _shows(frames: _Frames, code: TrainingCode) -> bool:
    """Whether a function of the script is named after logs."""
    return any("log" in _about(frame, code) for frame in _own(frames, code))


def _hands_over(stack: Stack) -> bool:
    """Whether another thread hands over tasks or results of other processes."""
    paths = (package_path(frame) for frame in stack)
    return _below(next((path for path in paths if not _below(path, STARTERS)), ""), HELPERS)


def _waits_for_process(frames: _Frames) -> bool:
    """Whether a thread waits for what another process sends, or for the result of a pool."""
    inner = [path for path, _ in takewhile(lambda called: called[0], reversed(frames))]
    return any(_below(path, PROCESSES) for path in inner) and not any(_below(path, QUEUES) for path in inner)


def _in_event_loop(frames: _Frames) -> bool:
    """Whether an event loop waits. What a task of the script awaits comes before, if that is known."""
    innermost = frames[-1][0] if frames else ""
    waits = innermost.startswith("selectors.") and any(path.startswith(EVENT_LOOP) for path, _ in frames)
    return waits or innermost.startswith(RUNNERS)


def computes_on_host(frames: _Frames) -> bool:
    """Whether something that computes calls what computes with numbers of the host."""
    inner = list(takewhile(lambda called: _first(COMPUTE, [called]) is None, reversed(frames)))
    if any(_below(path, HOST_LIBRARIES) for path, _ in inner):
        return True
    return bool(inner) and calls_host(inner[0][1].call)


def calls_host(call: str) -> bool:
    """Whether a call is one of Python or of NumPy that knows no tensors."""
    module, _, function = call.partition(".")
    return (module if function else "") in HOST_MODULES or call in HOST_CALLS


def _below(path: str, folders: Iterable[str]) -> bool:
    return any(path.startswith((f"{folder}/", f"{folder}.")) for folder in folders)


def _started(stack: Stack) -> _Function:
    """Return the file and the function that another thread was started with."""
    frame = next((frame for frame in stack if is_script(frame)), stack[-1])
    return frame.file, frame.function


def _while_waiting(waiting: Assessment, other: Assessment) -> Assessment:
    """Return what a thread does that waits for another one. What the other one is known to do is the cause.

    Python of the script, or tensors, may make data as well as anything: then a queue says more.
    """
    if other.kind in CAUSES or waiting.kind == "script":
        return other._replace(other=True)
    return waiting


def _in_callback(frames: _Frames) -> Kind:
    """Return what a callback does, by the frames inside of it."""
    kind = kind_of(tuple(frame for _, frame in frames))
    named = kind in ("input", "environment") and _first(CONTEXTS, frames) is None
    numbers = kind == "compute" and frames[-1][1].call in OPERATORS
    return "script" if named or numbers else kind


def _in_evaluation(stack: Stack, code: TrainingCode) -> Assessment:
    """Return what is done in an evaluation, by the frames inside of it."""
    inner = assess(stack, code) if stack else Assessment("evaluate")
    if inner.kind in EVALUATES:
        return Assessment("evaluate")
    frames = [(package_path(frame), frame) for frame in stack]
    if inner.kind == "save" and (_first(WRITERS, frames) or _first(WRITES, frames[-1:])):
        return Assessment("log")
    return Assessment(inner.kind, "known" if inner.basis == "known" else "unknown")


def _of_phase(phases: Iterable[str]) -> Kind | None:
    """Return what the innermost phase with a meaning is about."""
    return next(_meant(phases, PHASE_NAMES, ()), None) or next(_meant(phases, SCRIPT_NAMES, ()), None)


def _own(frames: _Frames, code: TrainingCode) -> Iterator[StackFrame]:
    """Yield the frames of the script that train nothing, the innermost first."""
    yield from (frame for _, frame in reversed(frames) if is_script(frame) and not code.trains(frame))


def _about(frame: StackFrame, code: TrainingCode) -> Iterator[Kind]:
    """Yield the kinds that the names of a frame of the script are about."""
    names = [name for name in _names(frame, code) if not _HOOK.match(name)] or [""]
    if len(names) > 1 and names[0] in ENVIRONMENT_METHODS:
        yield "environment"
    if _logs(names[0]):
        yield "log"
    yield from _meant(names, SCRIPT_NAMES)


def _basis(frames: _Frames, phases: Iterable[str], code: TrainingCode, place: Place) -> Basis:
    """Return what is known of Python of the script that no name says anything about."""
    mine = [frame for _, frame in frames if is_script(frame)]
    if _of_host(frames, code) or any(map(_names_host, phases)):
        return "known"
    if place in ("before", "between"):
        return place
    if mine and code.trains(mine[-1]):
        return "known"
    return "after" if place == "after" else "unknown"


def _of_host(frames: _Frames, code: TrainingCode) -> bool:
    """Whether a function of the script is named after work of the host."""
    return any(_names_host(name) for frame in _own(frames, code) for name in _names(frame, code))


def _names_host(name: str) -> bool:
    return not set(_words(name)).isdisjoint(HOST_NAMES.split())


def _names(frame: StackFrame, code: TrainingCode) -> list[str]:
    """Return the names of a function and of what it is defined in, the function first.

    One that is defined in a function that trains has nothing of its name.
    """
    outer, inner = "", enclosing_function(frame.function)
    if ".<locals>." in inner:
        outer, _, inner = inner.rpartition(".<locals>.")
    names = inner.split(".")[::-1]
    if outer and not code.trains(frame._replace(function=outer)):
        names += [name for name in outer.split(".")[::-1] if name != "<locals>"]
    return names


def _logs(function: str) -> bool:
    """Whether a function is named after logging: `log_prob` is not."""
    first, *others = _words(function)
    return first == "log" and (not others or not set(others).isdisjoint(LOGGED.split()))


def _meant(names: Iterable[str], known: Mapping[Kind, str], but: Iterable[str] = NOT_NAMES) -> Iterator[Kind]:
    """Yield the kinds that names have a word of, unless they have one of `but`."""
    for name in names:
        words = set(_words(name))
        if not words.isdisjoint(known.get("environment", "").split()):
            words.discard("step")  # `env_step` and `step_envs` step environments
        if not _BATCH.search(name.lower()):
            words -= {"batch", "minibatch"}  # `batch_hard_triplets` makes no batch
        if not words.isdisjoint((*HOST_NAMES.split(), *RESULTS.split())):
            words.difference_update(CONVERSIONS)
        if words.isdisjoint(but):
            yield from (kind for kind, of_kind in known.items() if not words.isdisjoint(of_kind.split()))


@lru_cache(maxsize=4096)
def _words(name: str) -> tuple[str, ...]:
    """Return the words of `get_batches` or `GetBatches`, with the singular of each plural after them."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().split("_")
    long = [word for word in words if len(word) > 4]
    singular = (word[:-cut] for word in long for cut in (1, 2) if word.endswith("es"[-cut:]))
    return (*words, *singular, *(word[:-3] + "y" for word in long if word.endswith("ies")))


def _first(rules: Iterable[Rule], frames: Iterable[tuple[str, StackFrame]]) -> Kind | None:
    rules = tuple(rules)
    for path, frame in frames:
        for rule in rules:
            if rule.matches(path, frame):
                return rule.kind
    return None
