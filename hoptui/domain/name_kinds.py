"""Which names of a script are of which kind: words in names of files, classes, functions and phases."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from hoptui.domain.code_lines import enclosing_function
from hoptui.domain.kind_rules import Kind
from hoptui.domain.stacks import StackFrame
from hoptui.domain.training_code import TrainingCode

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

HOOK = re.compile(r"_?on_[a-z]")
_BATCH = re.compile(r"batch(?:es)?(?:er)?$")


def kind_of_phase(phases: Iterable[str]) -> Kind | None:
    """Return what the innermost phase with a meaning is about."""
    return next(kinds_of_names(phases, PHASE_NAMES, ()), None) or next(
        kinds_of_names(phases, SCRIPT_NAMES, ()), None
    )


def kinds_of_frame(frame: StackFrame, code: TrainingCode) -> Iterator[Kind]:
    """Yield the kinds that the names of a frame of the script are about."""
    names = [name for name in frame_names(frame, code) if not HOOK.match(name)] or [""]
    if len(names) > 1 and names[0] in ENVIRONMENT_METHODS:
        yield "environment"
    if _logs(names[0]):
        yield "log"
    yield from kinds_of_names(names, SCRIPT_NAMES)


def names_host_work(name: str) -> bool:
    return not set(_words(name)).isdisjoint(HOST_NAMES.split())


def frame_names(frame: StackFrame, code: TrainingCode) -> list[str]:
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


def kinds_of_names(
    names: Iterable[str], known: Mapping[Kind, str], but: Iterable[str] = NOT_NAMES
) -> Iterator[Kind]:
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
