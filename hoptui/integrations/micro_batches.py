"""Micro-batches: the inputs of one batch in parts, whose losses add up to the loss of the whole batch.

A part of a batch has a share of the loss. Which share depends on how the loss is normalised, so `find_rule`
compares both sides on a few rows before anything is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeGuard

import torch

Rule = Literal["sum", "shifted labels", "labels", "rows"]
"""How the loss of a batch follows from the losses of its parts.

`sum`: they add up, because each is divided by the number of items of the whole batch. Else the loss is a
mean: over the labels without the first of each row, over all labels, or over the rows.
"""
IGNORED = -100
"""The label that counts in no loss."""
TINY = 1e-12
"""The loss below which an error is not divided by the loss."""
Part = tuple[dict[str, Any], float]
"""The inputs of a part, and its share of the loss. A part with the share 0 only keeps the ranks together."""


def row_count(inputs: object) -> int | None:
    """Return the number of rows of a batch, None if its inputs show none."""
    if not isinstance(inputs, Mapping):
        return None
    for name in ("labels", "input_ids"):
        if _is_rows(value := inputs.get(name)):
            return int(value.size(0))
    return next((int(value.size(0)) for value in inputs.values() if _is_rows(value)), None)


def token_count(inputs: object) -> int:
    """Return the number of elements of `input_ids`, 0 if there are none."""
    tokens = inputs.get("input_ids") if isinstance(inputs, Mapping) else None
    return tokens.numel() if isinstance(tokens, torch.Tensor) else 0


def row_length(inputs: object) -> int:
    """Return the number of elements of the largest input of one row, 0 if there is none."""
    if not isinstance(inputs, Mapping):
        return 0
    return max((value[0].numel() for value in inputs.values() if _is_rows(value) and len(value)), default=0)


def cut(inputs: Mapping[str, Any], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return the inputs in parts with these numbers of rows.

    Raises:
        ValueError: an input has neither one element for each row nor the same value for all rows.
    """
    rows, parts, start = sum(sizes), [], 0
    for size in sizes:
        parts.append(
            {name: _rows_of(name, value, rows, start, start + size) for name, value in inputs.items()}
        )
        start += size
    return parts


def even_sizes(rows: int, parts: int) -> list[int]:
    """Return the sizes of the parts: they differ by one row at most."""
    return [rows // parts + (index < rows % parts) for index in range(parts)]


def shares(rule: Rule, parts: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the share of each part in the loss of all."""
    if rule == "sum":
        return [1.0] * len(parts)
    if rule == "rows":
        counts = [float(row_count(part) or 0) for part in parts]
    else:  # one transfer for all parts
        counts = torch.stack([_labels(part, rule).ne(IGNORED).sum() for part in parts]).tolist()
    whole = sum(counts)
    return [count / whole if whole else 1.0 / len(parts) for count in counts]


def weighted_parts(inputs: Mapping[str, Any], parts: int, rule: Rule) -> list[Part]:
    """Return exactly so many parts of a batch with their shares.

    All ranks have to compute as many parts, whatever their rows are. If there are too few rows, or rows
    without labels make a part whose mean is not a number, another part is computed again with the share 0.
    The last part always counts, because it is the one that synchronises gradients.

    Raises:
        ValueError: see `cut`.
    """
    rows = row_count(inputs)
    if rows is None:
        raise ValueError("the batch has no rows")
    cuts = cut(inputs, even_sizes(rows, min(parts, rows)))
    weighted = [(part, share) for part, share in zip(cuts, shares(rule, cuts), strict=True) if share > 0]
    filler = [(weighted[0][0], 0.0)] * (parts - len(weighted))
    return filler + weighted


def find_rule(
    loss_of: Callable[[Mapping[str, Any]], float],
    inputs: Mapping[str, Any],
    rows: int,
    rules: Sequence[Rule],
    tolerance: float,
) -> Rule:
    """Return the rule under which the losses of two parts add up to the loss of both together.

    Parts whose losses are almost the same fit more than one rule. Another cut is then compared. Of the rules
    that still fit, the closest one counts.

    Args:
        loss_of: Returns the loss of some inputs, always the same for the same inputs.
        inputs: A batch.
        rows: How many of its rows to compare, at least 2.
        rules: The rules to try, the likeliest first.
        tolerance: The largest relative difference.

    Raises:
        ValueError: no rule holds, or the batch cannot be cut. The text is for users.
    """
    found = row_count(inputs)
    if found is None or found < 2:
        raise ValueError("the batch has fewer than two rows")
    rows = min(rows, found)
    whole = cut(inputs, [rows, found - rows])[0]
    labels = [rule for rule in ("labels", "shifted labels") if _has_labels(whole, rule)]
    errors = {rule: 0.0 for rule in rules if rule in ("sum", "rows", *labels)}
    for alone in (0, rows - 1):
        for rule, error in _errors(loss_of, whole, alone, list(errors)).items():
            if error <= tolerance:  # False if it is not a number
                errors[rule] += error
            else:
                del errors[rule]
        if len(errors) < 2:
            break
    if not errors:
        raise ValueError("the losses of the parts of a batch do not add up to its loss")
    return min(errors, key=errors.__getitem__)


def _errors(
    loss_of: Callable[[Mapping[str, Any]], float], whole: Mapping[str, Any], alone: int, rules: Sequence[Rule]
) -> dict[Rule, float]:
    """Return the relative error of each rule if the first or the last row is cut off."""
    rows = row_count(whole) or 0
    whole = dict(whole)
    labels = whole.get("labels")
    if isinstance(labels, torch.Tensor) and labels.dim() > 1 and not labels.is_floating_point():
        whole["labels"] = _with_one_label(labels, alone)
    expected = loss_of(whole)
    parts = cut(whole, [1, rows - 1] if alone == 0 else [rows - 1, 1])
    losses = [loss_of(part) for part in parts]

    def error(rule: Rule) -> float:
        pairs = zip(losses, shares(rule, parts), strict=True)
        total = sum(loss * share for loss, share in pairs if share)
        return abs(total - expected) / max(abs(expected), TINY)

    return {rule: error(rule) for rule in rules}


def _with_one_label(labels: torch.Tensor, row: int) -> torch.Tensor:
    """Return labels of which a row has only the first that counts, so that each rule has other shares."""
    counts = labels[row, 1:].ne(IGNORED)
    first = counts.reshape(len(counts), -1).any(dim=1).nonzero()
    if not len(first):
        return labels
    labels = labels.clone()
    labels[row, int(first[0]) + 2 :] = IGNORED
    return labels


def _is_rows(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _has_labels(inputs: Mapping[str, Any], rule: Rule) -> bool:
    labels = inputs.get("labels")
    if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
        return False
    return labels.dim() > (1 if rule == "shifted labels" else 0)


def _labels(inputs: Mapping[str, Any], rule: Rule) -> torch.Tensor:
    labels: torch.Tensor = inputs["labels"]
    return labels[..., 1:] if rule == "shifted labels" else labels


def _rows_of(name: str, value: Any, rows: int, start: int, end: int) -> Any:
    """Return the rows of one input, or the input itself if it is the same for all rows."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.Tensor):
        if value.dim() == 0 or (value.shape[0] == 1 and rows != 1):
            return value
        if value.shape[0] == rows:
            return value[start:end]
        raise ValueError(f"the input {name} has {value.shape[0]} rows, and the batch has {rows}")
    if isinstance(value, Mapping):
        return {key: _rows_of(f"{name}.{key}", each, rows, start, end) for key, each in value.items()}
    if isinstance(value, list | tuple) and len(value) == rows:
        return value[start:end]
    raise ValueError(f"the input {name} is a {type(value).__name__}, which cannot be cut into rows")
