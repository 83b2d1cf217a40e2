"""Secrets in configurations and command lines."""

from __future__ import annotations

import pytest

from hoptui.sdk.secrets import MASK, is_secret, masked, masked_arguments


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("api_key", "abc"), ("apikey", "abc"), ("WANDB_API_KEY", "abc"), ("apiKey", "abc"),
        ("hub_token", "a"),
        ("token", "abc"), ("secret", 5), ("password", 1234), ("db-password", "x"), ("aws.secret.access", "x"),
        ("credentials", "x"), ("AUTH", "x"), ("ssh_key", "/x"),
    ],
)  # fmt: skip
def test_a_name_of_a_secret(name: str, value: object) -> None:
    assert is_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokenizer", "gpt2"), ("max_tokens", 4096), ("tokens_per_batch", "4096"), ("num_key_value_heads", 8),
        ("eos_token", "</s>"), ("monkey", "x"), ("keyboard", "x"), ("api_key", ""), ("api_key", None),
        ("use_token", True), ("lr", "3e-4"),
    ],
)  # fmt: skip
def test_a_name_of_something_else(name: str, value: object) -> None:
    assert not is_secret(name, value)


def test_values_of_known_forms() -> None:
    for secret in ("hf_abcdefghijklmnop", "sk-proj-abcdefghijklmnop", "ghp_abcdefghijklmnopqrst"):
        assert masked(f"use {secret} here") == f"use {MASK} here"
    assert masked("https://ana:hunter2@host/x") == f"https://{MASK}@host/x"
    assert masked("https://host:80/x@y") == "https://host:80/x@y"
    assert masked("skip-connections") == "skip-connections"


def test_command_lines() -> None:
    given = (
        "train.py --api-key=abc --token abc --max-tokens 5 --password 123 --key --fast api_key=x lr=1 --token"
    )
    shown = (
        f"train.py --api-key={MASK} --token {MASK} --max-tokens 5 --password {MASK} --key --fast "
        f"api_key={MASK} lr=1 --token"
    )
    assert masked_arguments(given.split()) == shown.split()
