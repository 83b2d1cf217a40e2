"""Masks secrets in what describes a run: values of the configuration, and the command line.

A name decides, or the form of the value: `api_key=…`, `--token …`, `hf_…`, `https://user:password@host`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "***"
SECRET = frozenset(
    {"password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials", "pwd"}
)
"""A name with one of these words is of a secret, whatever its value is."""
MAYBE = frozenset({"key", "keys", "apikey", "token", "tokens", "auth", "authorization", "bearer"})
"""A name with one of these words is of a secret if the value is a text: `max_tokens` is a number."""
VOCABULARY = frozenset({"eos", "bos", "pad", "unk", "mask", "cls", "sep", "special", "image", "stop"})
"""`eos_token` is a token of a language model."""
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_KNOWN = re.compile(
    r"\b(?:hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abpr]-|AKIA|ASIA|wandb_v\d_)[A-Za-z0-9_\-]{12,}"
)
_LOGIN = re.compile(r"(\b\w+://)[^/\s:@]*:[^/\s@]+@")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def is_secret(name: str, value: object) -> bool:
    """Return whether a value must not be shown, as far as its name says. "", None and bools may be."""
    if value is None or isinstance(value, bool) or (isinstance(value, str) and not value):
        return False
    words = {word.lower() for word in _WORD.findall(name)}
    if words & SECRET:
        return True
    if not words & MAYBE or words & VOCABULARY:
        return False
    return isinstance(value, str) and not _NUMBER.fullmatch(value)


def masked(text: str) -> str:
    """Return a text without the secrets that have a known form."""
    text = _KNOWN.sub(MASK, text)
    return _LOGIN.sub(rf"\1{MASK}@", text) if "://" in text else text


def masked_arguments(arguments: Iterable[str]) -> list[str]:
    """Return a command line without secrets: `--token=…`, `--token …`, `api_key=…`."""
    shown: list[str] = []
    option = ""  # whose value may be the next argument
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and is_secret(name, value):
            shown.append(f"{name}={MASK}")
        elif option and not argument.startswith("-") and is_secret(option, argument):
            shown.append(MASK)
        else:
            shown.append(masked(argument))
        option = name if argument.startswith("-") and not equals else ""
    return shown
