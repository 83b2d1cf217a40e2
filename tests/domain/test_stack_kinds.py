"""What a stack is doing, and which line it stands for."""

from __future__ import annotations

import pytest

from hoptui.domain.stack_kinds import CONTEXTS, CodeLine, is_script, kind_of, package_path, place_of
from hoptui.domain.stacks import Stack, StackFrame

SITE = "/opt/env/lib/python3.12/site-packages/"
PYTHON = "/usr/lib/python3.12/"
MINE = "/home/ana/"


def stack(text: str) -> Stack:
    """Read frames such as `train.py main 12 > torch/nn/modules/module.py Module.forward 5 = linear`.

    Files of packages have a folder, and those of the standard library begin with `~`. The last frame may call
    something.
    """
    frames = []
    for part in text.split(" > "):
        part, _, call = part.partition(" = ")
        file, function, line = part.split()
        folder = PYTHON if file.startswith("~") else SITE if "/" in file else MINE
        frames.append(StackFrame(folder + file.removeprefix("~"), function, int(line), call=call))
    return tuple(frames)


LOADER = "train.py main 12 > torch/utils/data/dataloader.py _BaseDataLoaderIter.__next__ 708"
FETCH = f"{LOADER} > torch/utils/data/_utils/fetch.py _MapDatasetFetcher.fetch 52"
FORWARD = "train.py main 14 > torch/nn/modules/module.py Module._call_impl 1700"
CASES = [
    ("input", f"{FETCH} > data.py Folder.__getitem__ 37 = decode", "data.py 37 Folder.__getitem__"),
    (
        "input",
        f"{FETCH} > data.py Folder.__getitem__ 30 > ~json/decoder.py JSONDecoder.decode 3",
        "data.py 30 Folder.__getitem__",
    ),
    ("input", f"{LOADER} > ~multiprocessing/connection.py wait 900 = poll", "train.py 12 main"),
    ("input", "train.py main 9 > torchvision/io/image.py decode_jpeg 100 = decode_jpegs", "train.py 9 main"),
    ("input", "train.py main 9 > data.py batch 4 = read", "data.py 4 batch"),
    ("input", "train.py main 9 > transformers/tokenization_utils_base.py __call__ 4", "train.py 9 main"),
    ("compute", f"{FORWARD} > torch/nn/modules/linear.py Linear.forward 125 = linear", "train.py 14 main"),
    (
        "compute",
        f"{FORWARD} > model.py Net.forward 20 > torch/nn/functional.py relu 1",
        "model.py 20 Net.forward",
    ),
    (
        "compute",
        "train.py main 15 > torch/autograd/graph.py _engine_run_backward 800 = run_backward",
        "train.py 15 main",
    ),
    ("compute", "train.py main 16 > torch/optim/adamw.py AdamW.step 200 = _foreach_add_", "train.py 16 main"),
    ("wait", "train.py main 17 = item", "train.py 17 main"),
    (
        "wait",
        "train.py main 17 > torch/cuda/__init__.py synchronize 9 = _cuda_synchronize",
        "train.py 17 main",
    ),
    ("wait", "agent.py act 8 = cpu", "agent.py 8 act"),
    ("copy", "train.py main 13 = to", "train.py 13 main"),
    (
        "collective",
        "train.py main 18 > torch/distributed/distributed_c10d.py all_reduce 7",
        "train.py 18 main",
    ),
    (
        "save",
        "train.py main 19 > torch/serialization.py save 900 > torch/serialization.py _save 9 = cpu",
        "train.py 19 main",
    ),
    ("save", "train.py main 19 > safetensors/torch.py save_file 3 = serialize_file", "train.py 19 main"),
    ("log", "train.py main 20 > ~json/encoder.py JSONEncoder.iterencode 9", "train.py 20 main"),
    ("log", "train.py main 20 = print", "train.py 20 main"),
    (
        "log",
        "train.py main 20 > wandb/sdk/wandb_run.py Run.log 3 > ~threading.py Lock 2 = acquire",
        "train.py 20 main",
    ),
    (
        "environment",
        "ppo.py rollout 3 > gymnasium/wrappers/common.py step 9 > env.py step 40",
        "env.py 40 step",
    ),
    (
        "environment",
        "ppo.py rollout 3 > envpool/python/gymnasium_envpool.py step 9 = _recv",
        "ppo.py 3 rollout",
    ),
    (
        "compile",
        f"{FORWARD} > torch/_dynamo/convert_frame.py _compile 9 > torch/nn/functional.py x 1",
        "train.py 14 main",
    ),
    ("compile", f"{FORWARD} > torch/_inductor/graph.py GraphLowering.run 5", "train.py 14 main"),
    (
        "evaluate",
        "train.py main 9 > transformers/trainer.py Trainer.evaluate 3 > torch/nn/modules/module.py f 1",
        "train.py 9 main",
    ),
    ("compute", "train.py main 21 = torch.mm", "train.py 21 main"),
    ("compute", "train.py main 21 = x.mul_", "train.py 21 main"),
    ("compute", "train.py main 21 = @", "train.py 21 main"),
    ("wait", "train.py main 21 = float", "train.py 21 main"),
    ("wait", "train.py main 21 = loss.item", "train.py 21 main"),
    ("input", "train.py main 21 > helper.py collate 5", "helper.py 5 collate"),
    ("input", "train.py main 21 > text.py parse_rows 5 = float", "text.py 5 parse_rows"),
    ("input", "train.py main 21 > dataset.py rotate 5", "dataset.py 5 rotate"),
    ("copy", "train.py main 21 > train.py get_batch 5 = x.to", "train.py 5 get_batch"),
    ("environment", "ppo.py main 21 > cart.py CartEnv.step 5", "cart.py 5 CartEnv.step"),
    ("save", "train.py main 21 > train.py save_weights 5 = w.cpu", "train.py 5 save_weights"),
    ("evaluate", f"train.py main 21 > train.py evaluate 5 > {FORWARD}", "train.py 14 main"),
    ("log", "train.py main 21 > train.py log_metrics 5", "train.py 5 log_metrics"),
    ("input", "train.py main 21 > ~json/decoder.py JSONDecoder.raw_decode 5", "train.py 21 main"),
    (
        "input",
        "train.py main 21 > ~queue.py Queue.get 5 > ~threading.py Condition.wait 2 = acquire",
        "train.py 21 main",
    ),
    (
        "environment",
        "ppo.py main 21 > ppo.py Envs.step 5 > ~multiprocessing/connection.py Connection.recv 2 = read",
        "ppo.py 5 Envs.step",
    ),
    ("script", "train.py main 21 > train.py log_prob 5 = np.log", "train.py 5 log_prob"),
    ("script", "train.py main 21 > train.py train_batch 5", "train.py 5 train_batch"),
    ("script", "train.py main 21 > helper.py shuffle 5", "helper.py 5 shuffle"),
    ("script", "train.py main 21 > numpy/lib/function_base.py median 5 = partition", "train.py 21 main"),
    ("script", "train.py to 21", "train.py 21 to"),
]


@pytest.mark.parametrize(("kind", "text", "place"), CASES, ids=[text[:60] for _, text, _ in CASES])
def test_a_stack_has_a_kind_and_a_line(kind: str, text: str, place: str) -> None:
    found = stack(text)
    file, line, function = place.split()
    assert kind_of(found) == kind
    assert place_of(found) == CodeLine(MINE + file, int(line), function)


def test_a_compiled_module_computes_once_it_is_compiled() -> None:
    found = stack(f"{FORWARD} > torch/_dynamo/eval_frame.py OptimizedModule._call_impl 3 = forward")
    assert kind_of(found) == "compute"


def test_a_pause_is_no_work() -> None:
    waits = StackFrame("/src/hoptui/sdk/iteration.py", "IterationBoundary._wait_while_paused", 307)
    inner = StackFrame(f"{PYTHON}threading.py", "Event.wait", 629, call="wait")
    assert kind_of((StackFrame(f"{MINE}train.py", "main", 3), waits, inner)) == "paused"
    assert place_of((StackFrame(f"{MINE}train.py", "main", 3), waits, inner)).line == 3


@pytest.mark.parametrize(
    ("file", "path"),
    [
        (f"{SITE}torch/nn/modules/linear.py", "torch/nn/modules/linear.py"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy/core.py"),
        (f"{PYTHON}json/encoder.py", "json/encoder.py"),
        ("/home/ana/site-packages-of-mine/train.py", ""),
        ("/home/ana/train.py", ""),
        ("<frozen importlib._bootstrap>", ""),
    ],
)
def test_files_of_packages_are_known_by_their_path_below_them(file: str, path: str) -> None:
    assert package_path(file) == path
    assert is_script(StackFrame(file, "f", 1)) == (not path and not file.startswith("<frozen"))


def test_a_stack_of_a_library_alone_stands_for_its_innermost_line() -> None:
    found = stack("torch/nn/a.py f 1 > torch/nn/b.py g 2")
    assert place_of(found).line == 2


def test_the_table_names_each_library_once() -> None:
    paths = [(rule.path, rule.names) for rule in CONTEXTS]
    assert len(paths) == len(set(paths))
