"""Which frames are of which kind: an entry for each library, and rules for calls by their names.

`stack_kinds` says which of several rules counts.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from hoptui.domain.code_lines import HOST_PACKAGES, REQUESTS
from hoptui.domain.stacks import StackFrame
from hoptui.domain.training_code import MODULES, OPTIMIZERS

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
    *_rules("script", "keras/src/callbacks/callback_list"),
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
    *_rules("save", "keras/src/saving", names="save_model save_weights save_weights_only"),
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
    *_rules("evaluate", "keras/src/backend/torch/trainer", names="TorchTrainer.evaluate"),
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
"""What waits for the GPU in a framework: a tensor is read between two iterations, which may be in its phase
of data, or outside of the functions that train."""

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
    *_rules("input", "asyncio/streams", names="read readline readexactly readuntil"),
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
