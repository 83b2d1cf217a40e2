"""What a stack is doing, and which line it stands for."""

from __future__ import annotations

import pytest

from hoptui.domain.code_lines import CodeLine, is_script, package_path
from hoptui.domain.kind_rules import COMPUTE, CONTEXTS, GENERAL, MOVES, WAITS, Rule
from hoptui.domain.stack_kinds import Assessment, assess, assess_all, kind_of, place_of
from hoptui.domain.stacks import PHASE_FILE, Stack, StackFrame, phase_frames
from hoptui.domain.training_code import TrainingCode, TrainingFunction

SITE = "/opt/env/lib/python3.12/site-packages/"
PYTHON = "/usr/lib/python3.12/"
MINE = "/home/ana/"


def stack(text: str) -> Stack:
    """Read frames such as `train.py main 12 > torch/nn/modules/module.py Module.forward 5 = linear`.

    Files of packages have a folder, and those of the standard library begin with `~`. The last frame may call
    something.
    """
    frames: list[StackFrame] = []
    for part in text.split(" > "):
        part, _, call = part.partition(" = ")
        file, function, line = part.split()
        if file == PHASE_FILE:
            frames += phase_frames(function)
            continue
        folder = PYTHON if file.startswith("~") else SITE if "/" in file else MINE
        frames.append(StackFrame(folder + file.removeprefix("~"), function, int(line), call=call))
    return tuple(frames)


LOADER = "train.py main 12 > torch/utils/data/dataloader.py _BaseDataLoaderIter.__next__ 708"
FETCH = f"{LOADER} > torch/utils/data/_utils/fetch.py _MapDatasetFetcher.fetch 52"
FORWARD = "train.py main 14 > torch/nn/modules/module.py Module._call_impl 1700"
DATA_PHASE = f"{PHASE_FILE} data 0 > train.py main 4"
HOOKS = "lightning/pytorch/trainer/call.py _call_callback_hooks 228"
ROLLOUT = f"{PHASE_FILE} rollout 0 > ppo.py main 4"
STEP = "stable_baselines3/common/callbacks.py CallbackList._on_step 222"
EVENT = "transformers/trainer_callback.py CallbackHandler.call_event 545"
EVALUATION = "transformers/trainer.py Trainer.evaluation_loop 4500"
TRAINER = "transformers/trainer.py Trainer._inner_training_loop 2700"
EVALUATE = "train.py evaluate 6"
SAVE_UTIL = "stable_baselines3/common/save_util.py save_to_pkl 366 = pickle.dump"
STARTED = "~threading.py Thread._bootstrap 1002 > ~threading.py Thread._bootstrap_inner 1045"
QUEUE = f"train.py main 9 > ~queue.py Queue.get 171 > ~threading.py Condition.wait 327 > {STARTED}"
JOIN = f"train.py main 9 > ~threading.py Thread._wait_for_tstate_lock 1116 > {STARTED}"
SIGTERM = "pytorch_lightning/loops/training_epoch_loop.py _TrainingEpochLoop._broadcast_sigterm_tensor 269"
EVENT_LOOP = "~asyncio/base_events.py BaseEventLoop._run_once 1898 > ~selectors.py EpollSelector.select 468"
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
    (
        "script",
        f"{FORWARD} > loss.py SoftDTW.forward 20 = np.exp",
        "loss.py 20 SoftDTW.forward",
    ),
    (
        "script",
        "train.py main 15 > torch/autograd/graph.py _engine_run_backward 800 > torch/utils/hooks.py "
        "BackwardHook.hook 30 > spectra.py record 9 > numpy/linalg/_linalg.py svd 1800 = gufunc",
        "spectra.py 9 record",
    ),
    (
        "script",
        "train.py main 14 > torch/nn/modules/module.py Module._call_impl 1700 > "
        "torchmetrics/functional/text/helper.py _edit_distance 60 = min",
        "train.py 14 main",
    ),
    (
        "script",
        f"{FORWARD} > torch/utils/_contextlib.py decorate_context 116 > "
        "matcher.py HungarianMatcher.forward 80 = scipy.linear_sum_assignment",
        "matcher.py 80 HungarianMatcher.forward",
    ),
    ("script", f"{FORWARD} > loss.py SoftDTW.forward 20 = numba.compute", "loss.py 20 SoftDTW.forward"),
    ("compute", f"{FORWARD} > model.py Net.forward 20 = ext.compute", "model.py 20 Net.forward"),
    ("compute", f"{FORWARD} > model.py Net.forward 20 = torch.max", "model.py 20 Net.forward"),
    ("compute", f"{FORWARD} > model.py Net.forward 20 = *", "model.py 20 Net.forward"),
    (
        "compute",
        f"{FORWARD} > model.py Net.forward 20 > torch/_tensor.py Tensor.__rsub__ 9 = max",
        "model.py 20 Net.forward",
    ),
    ("wait", "train.py main 17 = item", "train.py 17 main"),
    ("wait", f"{DATA_PHASE} > {SIGTERM} = sigterm_tensor.item", "train.py 4 main"),
    (
        "collective",
        f"{DATA_PHASE} > {SIGTERM} > torch/distributed/distributed_c10d.py broadcast 2 = work.wait",
        "train.py 4 main",
    ),
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
        "collective",
        f"{FORWARD} > torch/nn/parallel/distributed.py DistributedDataParallel._pre_forward 1600 > "
        "torch/nn/parallel/distributed.py DistributedDataParallel._distributed_broadcast_coalesced 2363 "
        "= dist._broadcast_coalesced",
        "train.py 14 main",
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
    ("script", "train.py main 21 = torch.LongTensor", "train.py 21 main"),
    (
        "script",
        f"{DATA_PHASE} > {HOOKS} > confusion.py Matrix.on_train_batch_end 9",
        "confusion.py 9 Matrix.on_train_batch_end",
    ),
    (
        "script",
        f"{ROLLOUT} > {STEP} > diversity.py Diversity._on_rollout_end 7 > dtw.py dtw 3",
        "dtw.py 3 dtw",
    ),
    (
        "save",
        f"{ROLLOUT} > {STEP} > keep.py Keep._on_step 7 > torch/serialization.py save 9",
        "keep.py 7 Keep._on_step",
    ),
    ("log", f"train.py main 4 > {EVENT} > curves.py Curves.on_log 7 = print", "curves.py 7 Curves.on_log"),
    (
        "evaluate",
        f"{ROLLOUT} > {STEP} > stable_baselines3/common/evaluation.py evaluate_policy 9",
        "ppo.py 4 main",
    ),
    ("environment", f"{ROLLOUT} > cart.py CartEnv.step 9", "cart.py 9 CartEnv.step"),
    (
        "script",
        f"{EVALUATION} > qa.py compute_metrics 8 > qa.py postprocess 5 = sorted",
        "qa.py 5 postprocess",
    ),
    ("log", f"train.py main 9 > {EVALUATE} > PIL/Image.py Image.save 3", "train.py 6 evaluate"),
    (
        "evaluate",
        f"{EVALUATION} > model.py Net.forward 5 > torch/nn/modules/linear.py f 3",
        "model.py 5 Net.forward",
    ),
    ("evaluate", f"train.py main 9 > {EVALUATE} = item", "train.py 6 evaluate"),
    (
        "script",
        f"{DATA_PHASE} > {HOOKS} > matrix.py M.on_train_batch_end 9 = +=",
        "matrix.py 9 M.on_train_batch_end",
    ),
    ("script", f"{STEP} > far.py TrajectoryDistance._on_rollout_end 7 > far.py dtw 3 = min", "far.py 3 dtw"),
    ("input", f"{STEP} > look.py Look._on_step 7 > PIL/Image.py open 3", "look.py 7 Look._on_step"),
    ("save", f"{STEP} > keep.py SaveBuffer._on_step 7 > {SAVE_UTIL}", "keep.py 7 SaveBuffer._on_step"),
    ("script", "train.py main 9 > tree.py tree_distances 4 = []", "tree.py 4 tree_distances"),
    ("save", "train.py hand_over 9 > ~pathlib.py Path.replace 1183", "train.py 9 hand_over"),
    ("save", "train.py hand_over 9 = os.replace", "train.py 9 hand_over"),
    ("script", "train.py words 9 = line.replace", "train.py 9 words"),
    ("environment", f"{QUEUE} > actor.py Actor.run 14 > shop.py Shop.step 30", "shop.py 30 Shop.step"),
    ("input", f"{QUEUE} > ahead.py ahead 14 > ahead.py thin_out 30 = min", "train.py 9 main"),
    ("input", f"{QUEUE} > ahead.py ahead 14 > torch/nn/functional.py pad 30", "train.py 9 main"),
    ("environment", "train.py next_trajectories 9 = waiter.acquire", "train.py 9 next_trajectories"),
    (
        "save",
        f"{JOIN} > keep.py Keeper.write 14 > torch/serialization.py save 900",
        "keep.py 14 Keeper.write",
    ),
    ("script", f"{JOIN} > work.py work 14 = sorted", "work.py 14 work"),
    ("compute", f"{JOIN} > {FORWARD}", "train.py 14 main"),
    ("script", f"{STARTED} > train.py main 9 = sorted", "train.py 9 main"),
    # another thread keeps the interpreter
    ("script", f"{FORWARD} = torch.mm > {STARTED} > work.py work 14 = sorted", "work.py 14 work"),
    ("script", f"{FORWARD} = torch.mm > {STARTED} > model.py act 14 = torch.mm", "model.py 14 act"),
    ("input", f"{FORWARD} = torch.mm > {STARTED} > data.py read_rows 4 = split", "data.py 4 read_rows"),
    ("input", f"train.py main 5 = sorted > {STARTED} > data.py read_rows 4 = split", "data.py 4 read_rows"),
    ("wait", f"train.py main 30 = loss.item > {STARTED} > data.py read_rows 4 = split", "train.py 30 main"),
    (
        "save",
        f"train.py main 19 > safetensors/torch.py save_file 3 > {STARTED} > data.py read_rows 4 = split",
        "train.py 19 main",
    ),
    # conversions
    ("compute", "train.py main 13 = x.to(dtype)", "train.py 13 main"),
    # requests of torch.distributed, and collectives in a graph
    ("collective", "train.py main 13 > a.py Half.visit 4 = c10d.request.wait", "a.py 4 Half.visit"),
    ("collective", "train.py main 13 > a.py load_rows 4 = c10d.r.wait", "a.py 4 load_rows"),
    ("script", "train.py main 13 = engine.wait", "train.py 13 main"),
    (
        "collective",
        "train.py main 13 > torch/distributed/_functional_collectives.py wait_tensor 145",
        "train.py 13 main",
    ),
    # what passes on the elements of another iterator
    (
        "input",
        "train.py main 9 > tqdm/std.py tqdm.__iter__ 1181 > torch/utils/data/d.py f 7",
        "train.py 9 main",
    ),
    (
        "input",
        "train.py main 9 > tqdm/std.py tqdm.__iter__ 1181 > rows.py read_rows 7",
        "rows.py 7 read_rows",
    ),
    ("input", "train.py main 9 > rich/progress.py track 168 > torch/utils/data/d.py f 7", "train.py 9 main"),
    (
        "log",
        "train.py main 9 > tqdm/std.py tqdm.__iter__ 1195 > tqdm/std.py tqdm.update 3",
        "train.py 9 main",
    ),
    # what passes on a call
    (
        "compute",
        f"train.py main 9 > mlflow/utils/autologging_utils/safety.py f 9 > {FORWARD}",
        "train.py 14 main",
    ),
    ("compute", f"train.py main 9 > comet_ml/monkey_patching.py wrapper 9 > {FORWARD}", "train.py 14 main"),
    (
        "save",
        "train.py main 9 > clearml/binding/frameworks/pytorch_bind.py f 9 > torch/serialization.py save 4",
        "train.py 9 main",
    ),
    ("compute", f"wandb/agents/pyagent.py Agent._run_job 9 > {FORWARD}", "train.py 14 main"),
    ("log", "train.py main 9 > mlflow/tracking/fluent.py log_metrics 9 > ~ssl.py read 9", "train.py 9 main"),
    # results that are written, and what is read
    ("save", "train.py main 9 > out.py Panels.write 5 > PIL/Image.py Image.save 3", "out.py 5 Panels.write"),
    ("save", "train.py main 9 > torchvision/utils.py save_image 5 > PIL/Image.py f 3", "train.py 9 main"),
    ("save", "train.py main 9 > rows.py put 5 = writer.writerow", "rows.py 5 put"),
    ("save", "train.py main 9 > ~csv.py DictWriter.writerow 154 = self.writer.writerow", "train.py 9 main"),
    ("log", "train.py main 9 > log.py log_metrics 5 = writer.writerow", "log.py 5 log_metrics"),
    ("log", f"train.py main 9 > {EVALUATE} > a.py panel 3 = cv2.imwrite", "a.py 3 panel"),
    ("save", "train.py main 9 = cv2.imwrite", "train.py 9 main"),
    ("save", "train.py main 9 > ~json/__init__.py dump 179 > ~json/encoder.py f 4", "train.py 9 main"),
    ("log", "train.py main 9 > ~json/__init__.py dumps 231 > ~json/encoder.py f 4", "train.py 9 main"),
    (
        "log",
        "train.py main 9 > log.py log_row 5 > ~json/__init__.py dump 1 > ~json/encoder.py f 4",
        "log.py 5 log_row",
    ),
    ("save", "train.py main 9 > ~pathlib.py Path.write_text 1079 = f.write", "train.py 9 main"),
    (
        "save",
        "train.py main 9 > pandas/core/generic.py NDFrame.to_csv 3 > pandas/io/formats/csvs.py f 3",
        "train.py 9 main",
    ),
    ("save", "train.py main 9 > h5py/_hl/group.py Group.create_dataset 3 = dset.write", "train.py 9 main"),
    ("input", "train.py main 9 > h5py/_hl/dataset.py Dataset.__getitem__ 3 = f.get", "train.py 9 main"),
    ("input", "train.py main 9 > pandas/io/parsers/readers.py read_csv 3", "train.py 9 main"),
    ("input", "train.py main 9 > torch/serialization.py _load 3", "train.py 9 main"),
    ("input", "train.py main 9 = pickle.load", "train.py 9 main"),
    ("save", "train.py main 9 = pickle.dump", "train.py 9 main"),
    ("input", "train.py main 9 > safetensors/torch.py load_file 3", "train.py 9 main"),
    ("input", "train.py main 9 = cv2.resize", "train.py 9 main"),
    ("input", "train.py main 9 = tokenizer.encode_batch", "train.py 9 main"),
    (
        "save",
        "train.py main 9 > transformers/modeling_utils.py P.save_pretrained 3 = clone",
        "train.py 9 main",
    ),
    ("log", "train.py main 9 > lightning/pytorch/loggers/csv_logs.py f 3 = writerow", "train.py 9 main"),
    # environments of C code
    ("environment", "ppo.py main 9 = env.step", "ppo.py 9 main"),
    ("environment", "ppo.py main 9 = mujoco.mj_step", "ppo.py 9 main"),
]


@pytest.mark.parametrize(("kind", "text", "place"), CASES, ids=[text[:60] for _, text, _ in CASES])
def test_a_stack_has_a_kind_and_a_line(kind: str, text: str, place: str) -> None:
    found = stack(text)
    file, line, function = place.split()
    assert kind_of(found) == kind
    assert place_of(assess(found).part(found)) == CodeLine(MINE + file, int(line), function)


IGNITE = (
    "train.py main 23 > ignite/engine/engine.py Engine.run 1056 > "
    "ignite/engine/engine.py Engine._internal_run 1099 > "
    "ignite/engine/engine.py Engine._internal_run_as_gen 1123"
)
IGNITE_HANDLER = f"{IGNITE} > ignite/engine/engine.py Engine._fire_event 453"
IGNITE_EVALUATOR = (
    f"{IGNITE_HANDLER} > train.py completed 22 > ignite/engine/engine.py Engine.run 1056 > "
    "ignite/engine/engine.py Engine._run_once_on_dataset_as_gen 1269"
)
MODULE = "torch/nn/modules/module.py Module._call_impl 1789"
MM_LOOP = (
    "train.py main 28 > mmengine/runner/runner.py Runner.train 1777 > mmengine/runner/loops.py "
    "EpochBasedTrainLoop.run 98"
)
MODULE_HOOK = "lightning/pytorch/trainer/call.py _call_lightning_module_hook 177"
MM_STEP = f"{MM_LOOP} > mmengine/runner/loops.py EpochBasedTrainLoop.run_iter 131"
MM_VALIDATION = (
    f"{MM_LOOP} > mmengine/runner/loops.py ValLoop.run 379 > torch/utils/_contextlib.py "
    "context_decorator.<locals>.decorate_context 124 > mmengine/runner/loops.py ValLoop.run_iter 404"
)
MM_HOOK = "mmengine/runner/runner.py Runner.call_hook 1839"
FASTAI = (
    "train.py main 19 > fastai/learner.py Learner.fit 273 > fastai/learner.py Learner._with_events 208 > "
    "fastai/learner.py Learner._do_epoch 256"
)
FASTAI_VALIDATION = f"{FASTAI} > fastai/learner.py Learner._do_epoch_validate 253"
FASTAI_BATCH = "fastai/learner.py Learner.all_batches 214 > fastai/learner.py Learner.one_batch 244"
FASTAI_CALL = (
    "fastai/learner.py Learner.__call__ 181 > fastcore/foundation.py L.map 248 > fastcore/basics.py "
    "bind.__call__ 1034 > fastai/learner.py Learner._call_one 185 > fastai/callback/core.py "
    "Callback.__call__ 63"
)
RAY_REPORT = (
    "train.py train_func 26 > ray/train/v2/_internal/util.py requires_train_worker.<locals>._wrap.<locals>."
    "_wrapped_fn 299 > ray/train/v2/api/train_fn_utils.py report 125 > "
    "ray/train/v2/_internal/execution/train_fn_utils.py DistributedTrainFnUtils.report 172 > "
    "ray/train/v2/_internal/execution/context.py TrainContext.report 474"
)
RAY_CONTEXT = "ray/train/v2/_internal/execution/context.py TrainContext."
RAY_BATCHES = (
    "train.py train_func 25 > hoptui/integrations/ray.py _Counted.__iter__ 301 > "
    "ray/data/iterator.py DataIterator._iter_batches.<locals>._create_iterator"
)
RAY_BLOCKS = "ray/data/_internal/block_batching"
RAY_GET = (
    "ray/_private/auto_init_hook.py wrap_auto_init.<locals>.auto_init_wrapper 22 > "
    "ray/_private/worker.py Worker.get_objects 1007 = self.core_worker.get_objects"
)
SB3_EVALUATION = (
    f"{ROLLOUT} > {STEP} > stable_baselines3/common/callbacks.py EvalCallback._on_step 465 > "
    "stable_baselines3/common/evaluation.py evaluate_policy 92"
)
TITAN = "train.py main 23 > torchtitan/trainer.py Trainer.train 1039"
TITAN_VALIDATION = (
    f"{TITAN} > torch/utils/_contextlib.py context_decorator.<locals>.decorate_context 124 > "
    "torchtitan/components/validate.py Validator.validate 330"
)
ACCELERATE_LOG = (
    "train.py main 17 > accelerate/accelerator.py Accelerator.on_main_process.<locals>._inner 910 > "
    "accelerate/accelerator.py Accelerator.log 3427 > "
    "accelerate/tracking.py on_main_process.<locals>.execute_on_main_process 91"
)
KERAS = "train.py main 18 > keras/src/backend/torch/trainer.py TorchTrainer.fit"
KERAS_CALLBACK = f"{KERAS} 276 > keras/src/callbacks/callback_list.py CallbackList.on_train_batch_end 196"
KERAS_SAVE = (
    "keras/src/models/model.py Model.save_weights 400 > keras/src/saving/saving_api.py save_weights 250"
)
KERAS_EVALUATION = f"{KERAS} 295 > keras/src/backend/torch/trainer.py TorchTrainer.evaluate 390"
COMPOSER = "train.py main 36 > composer/trainer/trainer.py Trainer.fit 2330"
COMPOSER_EVALUATION = f"{COMPOSER} > composer/trainer/trainer.py Trainer._eval_loop 3440"
FRAMEWORKS = [
    # a training step stays one of training
    ("compute", f"{IGNITE} > train.py update 11 > {MODULE} > model.py Net.forward 8"),
    ("compute", f"{MM_STEP} > {MODULE} > model.py Net.forward 12"),
    ("compute", f"{FASTAI} > {FASTAI_BATCH} > {MODULE} > model.py Net.forward 10"),
    ("compute", f"{TITAN} > {MODULE} > model.py Net.forward 5"),
    ("compute", f"{COMPOSER} > {MODULE} > model.py Net.forward 12"),
    # callbacks, even if the phase around them is one of data
    ("script", f"{DATA_PHASE} > {IGNITE_HANDLER} > train.py on_iteration 20 = sorted"),
    ("save", f"{IGNITE_HANDLER} > ignite/handlers/checkpoint.py f 9 > torch/serialization.py save 9"),
    ("script", f"{DATA_PHASE} > {MM_STEP} > {MM_HOOK} > hooks.py Batches.after_train_iter 16 = sorted"),
    ("save", f"{MM_HOOK} > mmengine/hooks/checkpoint_hook.py f 9 > torch/serialization.py save 9"),
    ("script", f"{DATA_PHASE} > {FASTAI} > {FASTAI_CALL} > batches.py Batches.after_batch 12 = sorted"),
    ("wait", f"{FASTAI} > {FASTAI_CALL} > fastai/learner.py AvgSmoothLoss.accumulate 12 = item"),
    (
        "script",
        f"{DATA_PHASE} > {COMPOSER} > composer/core/engine.py Engine._run_callbacks 494 > "
        "composer/core/callback.py Callback.run_event 96 > batches.py Batches.batch_end 15 = sorted",
    ),
    (
        "compute",
        f"{COMPOSER} > composer/core/engine.py Engine._run_algorithms 405 > "
        "composer/algorithms/mixup/mixup.py MixUp.apply 200 = torch.mm",
    ),
    ("script", f"{DATA_PHASE} > {STEP} > batches.py Batches._on_step 6 = sorted"),
    ("script", f"{DATA_PHASE} > {MODULE_HOOK} > net.py Net.on_train_batch_end 20 > masks.py regions 6"),
    ("compute", f"{MODULE_HOOK} > net.py Net.on_before_zero_grad 20 = torch.mm"),
    ("input", f"{DATA_PHASE} > {MODULE_HOOK} > net.py Net.on_after_batch_transfer 20 > kernels.py f 6"),
    ("input", f"{DATA_PHASE} > {MODULE_HOOK} > net.py Net.transfer_batch_to_device 20 > kernels.py f 6"),
    ("compute", f"{MODULE_HOOK} > net.py Net.optimizer_step 20 > {MODULE} > model.py Net.forward 8"),
    ("script", f"{DATA_PHASE} > {KERAS_CALLBACK} > batches.py Batches.on_train_batch_end 12 = sorted"),
    (
        "save",
        f"{KERAS_CALLBACK} > keras/src/callbacks/model_checkpoint.py ModelCheckpoint._save_model 336 > "
        f"{KERAS_SAVE} > keras/src/saving/saving_lib.py H5IOStore._create_h5_group 1155",
    ),
    ("save", f"{KERAS} 276 > callback.py Mine.on_epoch_end 20 > {KERAS_SAVE} > h5py/_hl/group.py f 5"),
    # evaluations, with what else is done in them
    ("evaluate", f"{IGNITE_EVALUATOR} > {MODULE} > model.py Net.forward 8"),
    ("input", f"{IGNITE_EVALUATOR} > torch/utils/data/dataloader.py f 725 > data.py D.__getitem__ 23"),
    (
        "script",
        f"{IGNITE_EVALUATOR} > ignite/engine/engine.py Engine._fire_event 453 > "
        "ignite/metrics/metric.py Metric.iteration_completed 487 > score.py Score.update 15 = sorted",
    ),
    ("evaluate", f"{MM_VALIDATION} > {MODULE} > model.py Net.forward 12"),
    ("script", f"{MM_VALIDATION} > mmengine/evaluator/evaluator.py Evaluator.process 60 > m.py M.process 1"),
    ("input", f"{MM_VALIDATION} > torch/utils/data/dataloader.py f 725 > data.py D.__getitem__ 23"),
    ("evaluate", f"{FASTAI_VALIDATION} > {FASTAI_BATCH} > {MODULE} > model.py Net.forward 10"),
    ("evaluate", f"{KERAS_EVALUATION} > keras/src/layers/core/dense.py Dense.call 160 = torch.matmul"),
    ("input", f"{KERAS_EVALUATION} > torch/utils/data/dataloader.py f 725 > data.py D.__getitem__ 23"),
    ("evaluate", f"{TITAN_VALIDATION} > {MODULE} > model.py Net.forward 22"),
    ("evaluate", f"{COMPOSER_EVALUATION} > {MODULE} > model.py Net.forward 12"),
    ("evaluate", f"{SB3_EVALUATION} > {MODULE} > model.py Net.forward 22"),
    (
        "environment",
        f"{SB3_EVALUATION} > stable_baselines3/common/vec_env/base_vec_env.py VecEnv.step 222 > "
        "cart.py Cart.step 10",
    ),
    # reports and trackers
    ("log", f"{ACCELERATE_LOG} > accelerate/tracking.py TensorBoardTracker.log 250"),
    ("log", f"{ACCELERATE_LOG} > track.py Mine.log 12 = sorted"),
    (
        "log",
        "train.py main 12 > stable_baselines3/common/on_policy_algorithm.py f 300 > "
        "stable_baselines3/common/logger.py Logger.dump 550",
    ),
    (
        "collective",
        f"{RAY_REPORT} > {RAY_CONTEXT}_sync_checkpoint_dir_name_across_ranks 254 > "
        "ray/_private/worker.py Worker.get_objects 1007 = self.core_worker.get_objects",
    ),
    (
        "save",
        f"{RAY_REPORT} > {RAY_CONTEXT}_upload_checkpoint 337 > ray/train/v2/_internal/execution/storage.py "
        "StorageContext.persist_current_checkpoint 504 > pyarrow/fs.py copy_files 256 = _copy_files_selector",
    ),
    ("log", f"{RAY_REPORT} > {RAY_CONTEXT}_wait_then_report 397 > ~queue.py Queue.put 140 = wait"),
    # the shard of a dataset: its batches, their conversion, the other workers of a new epoch, and the shard
    (
        "input",
        f"{RAY_BATCHES} 293 > {RAY_BLOCKS}/iter_batches.py BatchIterator._iter_batches 281 > "
        f"{RAY_BLOCKS}/util.py iter_threaded 151 > ~queue.py Queue.get 171 > "
        "~threading.py Condition.wait 327 = waiter.acquire",
    ),
    (
        "input",
        f"{RAY_BATCHES} 212 > {RAY_BLOCKS}/iter_batches.py BatchIterator._iter_batches 227 > "
        "ray/data/_internal/util.py _InterruptibleQueue.get 886 > ~threading.py Condition.wait 331",
    ),
    ("input", f"{RAY_BATCHES} 293 > {RAY_BLOCKS}/util.py f 90 > torch/_tensor.py f 9 = torch.as_tensor"),
    (
        "input",
        f"{RAY_BATCHES} 256 > ray/data/_internal/iterator/stream_split_iterator.py "
        f"StreamSplitDataIterator._get_dataset_tag 187 > {RAY_GET}",
    ),
    (
        "input",
        f"train.py train_func 22 > {RAY_CONTEXT}get_dataset_shard 223 > ray/train/v2/_internal/callbacks/"
        f"datasets.py RayDatasetShardProvider.get_dataset_shard 67 > {RAY_GET}",
    ),
]
"""Shortened stacks of trainings with ignite 0.5.5, MMEngine 0.10.7, fastai 2.8.12, Ray 2.51 and 2.60,
TorchTitan 0.3, Stable-Baselines3 2.9.2, Accelerate 1.15 and Keras 3.15. Those of Composer 0.32.1 are from its
source."""


@pytest.mark.parametrize(("kind", "text"), FRAMEWORKS, ids=[f"{k} {t[-60:]}" for k, t in FRAMEWORKS])
def test_callbacks_and_evaluations_of_frameworks_are_known(kind: str, text: str) -> None:
    assert kind_of(stack(text)) == kind


CODE = TrainingCode(
    [
        TrainingFunction(f"{MINE}train_env.py", "fit_dataset", running=(20,)),
        TrainingFunction(f"{MINE}train_env.py", "learn", running=(20, 40), training=(41,)),
    ]
)
"""Functions that train, one with a misleading name, in a file that has one too."""


RECV = (
    "~multiprocessing/connection.py Connection.recv 249 > ~multiprocessing/connection.py Connection._recv 378"
)
POOL = (
    "~multiprocessing/pool.py Pool.map 367 > ~multiprocessing/pool.py ApplyResult.get 768 > "
    "~threading.py Condition.wait 327"
)
SEND = "~multiprocessing/connection.py Connection._send 384"
WORKER = "~multiprocessing/pool.py worker 125 > ~multiprocessing/pool.py mapstar 48"
POOL_THREAD = f"{STARTED} > ~threading.py Thread.run 982 > ~multiprocessing/pool.py Pool._handle_tasks 531"


@pytest.mark.parametrize(
    ("kind", "basis", "text"),
    [
        # the names of a function that trains, and of its file, mean nothing
        ("script", "known", "train_env.py fit_dataset 30"),
        ("script", "before", "train_env.py fit_dataset 12"),
        ("script", "unknown", "train_env.py fit_dataset 30 > train_env.py shuffle 5"),
        ("script", "before", "train_env.py fit_dataset 12 > train_env.py shuffle 5"),
        ("script", "unknown", "train_env.py fit_dataset 30 > train_env.py fit_dataset.<locals>.shuffle 5"),
        ("input", "known", "train_env.py fit_dataset 12 > rows.py read_rows 5"),
        ("script", "known", "train_env.py fit_dataset 30 > text.py edit_distance 5"),
        # between two runs of the model
        ("script", "between", "train_env.py learn 30"),
        ("script", "between", "train_env.py learn 30 > a.py move 5 = x.append"),
        ("script", "known", "train_env.py learn 30 > text.py edit_distance 5"),
        ("script", "known", "train_env.py learn 30 > a.py Kmeans.assign 5"),
        ("compute", "known", "train_env.py learn 30 > a.py move 5 = @"),
        ("input", "known", "train_env.py learn 30 > rows.py read_rows 5"),
        # methods of environments
        ("environment", "known", "train_env.py fit_dataset 30 > market.py Market.step 5"),
        ("environment", "known", "train_env.py fit_dataset 30 > market.py Market.step.<locals>.<listcomp> 5"),
        ("environment", "known", "train_env.py fit_dataset.<locals>.env_step 5"),
        ("script", "unknown", "train_env.py fit_dataset.<locals>.one_step 5"),
        ("compute", "known", "train_env.py fit_dataset 3 > torch/optim/optimizer.py f 5 > a.py Muon.step 9"),
        # tensors that a function of data prepares, and those of a model in one
        ("input", "known", "train_env.py fit_dataset 12 > crops.py crops 5 > torch/nn/functional.py pad 4"),
        ("input", "known", "train_env.py fit_dataset 12 > a.py collate 5 = torch.stack"),
        ("input", "known", "train_env.py fit_dataset 12 > a.py collate 5 = x.numpy"),
        ("compute", "known", "train_env.py fit_dataset 12 > a.py collate 5 > torch/nn/modules/module.py f 4"),
        ("compute", "known", "train_env.py fit_dataset 30 > a.py pairs 5 > torch/nn/functional.py pad 4"),
        # operators and numbers
        ("compute", "known", "train_env.py fit_dataset 30 = @"),
        ("script", "before", "train_env.py fit_dataset 12 = @"),
        ("wait", "known", "train_env.py fit_dataset 30 = float"),
        ("script", "unknown", "train_env.py fit_dataset 30 > a.py curve 5 = float"),
        ("wait", "known", f"train_env.py main 3 > {TRAINER} = bool"),
        ("script", "unknown", f"train_env.py main 3 > {TRAINER} > pandas/core/generic.py f 5 = bool"),
        ("script", "unknown", "train_env.py fit_dataset 30 > a.py curve 5 = torch.tensor"),
        # logging, and functions of a logarithm
        ("log", "known", "train_env.py fit_dataset 30 > a.py log_losses 5"),
        ("log", "known", "train_env.py fit_dataset 30 > a.py log 5"),
        ("script", "unknown", "train_env.py fit_dataset 30 > a.py log_softness 5"),
        ("script", "known", "train_env.py fit_dataset 30 > a.py batch_hard_triplets 5"),
        ("input", "known", "train_env.py fit_dataset 30 > a.py next_batches 5"),
        # what a model says is turned into a result
        ("script", "known", "train_env.py fit_dataset 30 > a.py beam_search_decode 5"),
        ("script", "unknown", "train_env.py fit_dataset 30 > a.py decode_predictions 5"),
        ("input", "known", "train_env.py fit_dataset 30 > a.py decode_image 5"),
        # libraries that read and write
        ("save", "known", "train_env.py fit_dataset 30 > PIL/Image.py Image.save 5 > PIL/ImageFile.py f 4"),
        ("log", "known", "train_env.py fit_dataset 30 > a.py Chart.on_step 5 > PIL/Image.py Image.save 5"),
        ("input", "known", "train_env.py fit_dataset 30 > PIL/Image.py Image.rotate 5"),
        ("log", "known", "train_env.py fit_dataset 30 > ~json/encoder.py floatstr 5 = float.__repr__"),
        ("save", "known", "train_env.py fit_dataset 30 > a.py freeze 5 = tobytes"),
        ("save", "known", "train_env.py fit_dataset 30 > a.py save_snapshot 5"),
        ("script", "unknown", "train_env.py fit_dataset 30 > a.py snapshots 5"),  # of a market, or a page
        ("save", "known", "train_env.py fit_dataset 30 > numpy/lib/_npyio_impl.py savez_compressed 5"),
        ("input", "known", "train_env.py fit_dataset 30 > a.py sound 5 > ~wave.py Wave_read.readframes 4"),
        ("input", "known", "train_env.py fit_dataset 30 > a.py sound 5 = zlib.decompress"),
        # what wraps a function that trains is no log
        ("compute", "known", f"sacred/run.py f 3 > train_env.py learn 30 > {MODULE} > net.py f 8"),
        ("log", "known", "train_env.py learn 30 > wandb/sdk/wandb_run.py Run.log 3"),
        ("log", "known", "sacred/run.py f 3 > train_env.py learn 30 > tqdm/std.py tqdm.update 3"),
        # the training itself runs in another process
        ("script", "unknown", f"{WORKER} > train_env.py learn 60 > a.py curve 5 = sorted"),
        ("script", "before", f"{WORKER} > train_env.py learn 12 > a.py curve 5 = sorted"),
        # other processes
        ("input", "process", f"train_env.py learn 12 > {RECV} = read"),
        ("script", "between", f"train_env.py learn 30 > {RECV} = read"),
        ("input", "process", f"train_env.py learn 12 > {POOL} = waiter.acquire"),
        ("input", "process", f"train_env.py learn 12 > {POOL} > {POOL_THREAD} = taskqueue.get"),
        ("input", "process", f"train_env.py learn 12 > {POOL} > {POOL_THREAD} > {SEND} = write"),
        (
            "input",
            "process",
            f"train_env.py learn 12 > ~concurrent/futures/process.py f 9 > {POOL} = acquire",
        ),
        ("script", "between", f"train_env.py learn 30 > {POOL} > {POOL_THREAD} = taskqueue.get"),
        ("input", "known", f"train_env.py learn 30 > rows.py read_rows 5 > {RECV} = read"),
        ("environment", "known", f"train_env.py learn 12 > a.py Envs.step 5 > {RECV} = read"),
        (
            "input",
            "known",
            f"train_env.py learn 30 > ~multiprocessing/queues.py Queue.get 103 > {RECV} = read",
        ),
        ("input", "known", f"train_env.py learn 30 > torch/utils/data/dataloader.py f 1 > {RECV} = read"),
        # declared phases
        ("input", "known", "<phase> augment 0 > train_env.py fit_dataset 30 > a.py views 5"),
        ("input", "known", "<phase> data_wait 0 > train_env.py fit_dataset 30 = torch.stack"),
        ("copy", "known", "<phase> data 0 > train_env.py fit_dataset 30 = x.to"),
        ("compute", "known", "<phase> data 0 > train_env.py fit_dataset 30 > torch/nn/modules/module.py f 4"),
        ("environment", "known", "<phase> rollout 0 > train_env.py fit_dataset 30 > a.py move 5"),
        ("environment", "known", "<phase> env_step 0 > train_env.py fit_dataset 30"),
        ("compute", "known", "<phase> rollout 0 > train_env.py fit_dataset 30 = torch.cos"),
        ("compute", "known", "<phase> rollout 0 > train_env.py fit_dataset 12 > a.py f 5 = @"),
        ("compute", "known", "<phase> rollout 0 > train_env.py fit_dataset 30 > torch/cuda/graphs.py f 9"),
        ("environment", "known", "<phase> env 0 > train_env.py fit_dataset 30 > ~json/decoder.py f 9"),
        ("compute", "known", "<phase> env 0 > train_env.py fit_dataset 30 > torch/nn/functional.py f 4"),
        ("wait", "known", "<phase> rollout 0 > train_env.py fit_dataset 30 = a.item"),
        ("save", "known", "<phase> checkpoint 0 > train_env.py fit_dataset 30 = zlib.crc32"),
        ("evaluate", "known", "<phase> eval 0 > train_env.py fit_dataset 30 = torch.mm"),
        (
            "environment",
            "known",
            "<phase> rollout/env 0 > train_env.py fit_dataset 30 > a.py f 5",
        ),
        ("script", "known", "<phase> metrics 0 > train_env.py fit_dataset 30 > a.py f 5"),
        ("script", "unknown", "<phase> update 0 > train_env.py fit_dataset 30 > a.py f 5"),
        ("script", "unknown", "<phase> wait_for_ranks 0 > train_env.py fit_dataset 30 > a.py f 5"),
    ],
)
def test_what_a_kind_rests_on(kind: str, basis: str, text: str) -> None:
    assert assess(stack(text), CODE)[:2] == (kind, basis)


def test_the_policy_of_a_thread_that_plays_is_part_of_playing() -> None:
    play, shop = f"{QUEUE} > actor.py Actor.run 14", "shop.py Shop.step 30"
    policy = stack(f"{play} > torch/nn/modules/linear.py Linear.forward 125 = linear")
    step, write = stack(f"{play} > {shop}"), stack(f"{JOIN} > keep.py write 14 > zip.py pack 3 = sorted")
    kinds = {found: each.kind for found, each in assess_all({policy: 9, step: 2, write: 1}).items()}
    assert kinds == {policy: "environment", step: "environment", write: "script"}
    unclear = assess_all({policy: 9})[policy]
    assert unclear.kind == "input", "nothing is known but the queue"
    assert place_of(unclear.part(policy)).function == "main"


def test_an_event_loop_waits_for_what_nothing_says() -> None:
    found = stack(f"train.py main 9 > ~asyncio/runners.py run 190 > {EVENT_LOOP} = _selector.poll")
    code = TrainingCode([TrainingFunction(f"{MINE}train.py", "main", (7,), (8,))])
    assert assess(found, code) == Assessment("script", "unknown")
    loop, _, select = EVENT_LOOP.rpartition(" > ")
    awaits = stack(f"train.py run 90 > {loop} > train.py main 6 > {select} = _selector.poll")
    assert assess(awaits, code) == Assessment("script", "before")
    assert place_of(awaits) == CodeLine(f"{MINE}train.py", 6, "main")
    compiled = stack("train.py run 90 > train.py main 6 > ~asyncio/runners.py Runner.run 118")
    assert assess(compiled, code) == Assessment("script", "before"), "a loop of C code has no frame"
    fetches = "train.py main 6 > client.py get 11 > ~asyncio/streams.py StreamReader"
    wakes = "~asyncio/streams.py StreamReader._wait_for_data 540"
    reads = stack(f"train.py run 90 > {loop} > {fetches}.readexactly 747 > {wakes} > {select} = poll")
    assert assess(reads, code) == Assessment("input"), "it awaits what it reads from a connection"
    sends = stack(f"train.py run 90 > {loop} > {fetches}Writer.drain 380 > {select} = poll")
    assert assess(sends, code) == Assessment("script", "before")
    loads = stack(f"train.py main 9 > {EVENT_LOOP} = _selector.poll > {STARTED} > data.py decode 3")
    assert assess(loads, code) == Assessment("input", other=True)


def test_a_phase_is_no_line_of_the_script() -> None:
    found = stack("<phase> data 0 > torch/nn/a.py f 1")
    assert not is_script(found[0])
    assert place_of(found).line == 1


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
        ("/usr/lib64/python3.11/threading.py", "threading.py"),
        ("/home/ana/site-packages-of-mine/train.py", ""),
        ("/home/ana/train.py", ""),
        ("<frozen importlib._bootstrap>", ""),
    ],
)
def test_files_of_packages_are_known_by_their_path_below_them(file: str, path: str) -> None:
    assert package_path(StackFrame(file, "f", 1)) == path
    assert is_script(StackFrame(file, "f", 1)) == (not path and not file.startswith("<frozen"))


def test_a_package_in_any_folder_is_known_by_what_its_process_knows() -> None:
    main = StackFrame(f"{MINE}train.py", "main", 3)
    save = StackFrame("/opt/libs/accelerate/utils/other.py", "save", 439)
    dump = StackFrame("/opt/libs/torch/serialization.py", "save", 900)
    assert place_of((main, save, dump)).line == 900
    known = tuple(frame._replace(package_at=len("/opt/libs/")) for frame in (save, dump))
    assert [package_path(frame) for frame in known] == ["accelerate/utils/other.py", "torch/serialization.py"]
    assert place_of((main, *known)).line == 3
    assert kind_of((main, *known)) == "save"


def test_code_that_a_user_has_typed_is_the_script_and_generated_code_is_not() -> None:
    typed = ("<string>", "<stdin>", "<ipython-input-3-0f8a>", "/tmp/ipykernel_7/2817.py")
    generated = ("<eval_with_key>.3", "<class 'networkx.utils.decorators.argmap'> compilation 24", "<phase>")
    assert [is_script(StackFrame(file, "f", 1)) for file in (*typed, *generated)] == [True] * 4 + [False] * 3


def test_a_stack_of_a_library_alone_stands_for_its_innermost_line() -> None:
    found = stack("torch/nn/a.py f 1 > torch/nn/b.py g 2")
    assert place_of(found).line == 2


def test_the_table_names_each_library_once() -> None:
    paths = [(rule.path, rule.names) for rule in CONTEXTS]
    assert len(paths) == len(set(paths))


RULES = [rule for table in (CONTEXTS, MOVES, WAITS, COMPUTE, GENERAL) for rule in table]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.kind} {rule.path or sorted(rule.names)[0]}")
def test_no_rule_is_hidden_by_another_one(rule: Rule) -> None:
    """What a rule describes is of its kind, whatever other tables and rules there are."""
    main = StackFrame(f"{MINE}train.py", "main", 12)
    for name in rule.names or ("f",):
        inner = StackFrame(f"{SITE}{rule.path}.py", name, 5)
        called = (main, inner) if rule.path else (main._replace(call=name.replace(".*", ".f")),)
        assert kind_of(called) == rule.kind, name
