"""What an engine reports against what the fleet file says of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.fleet import contract

REPORTED = {
    "version": "0.32.0",
    "model": "m",
    "max_model_len": 32768,
    "block_size": "16",
    "cache_dtype": "auto",
}
_plain = st.none() | st.booleans() | st.integers() | st.text(max_size=5)


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        REPORTED,
        {"max_model_len": "32768", "block_size": 16},
        {"version": None, "model": ["m", "n"], "block_size": {"is": 32}, "cache_dtype": True},
        {"dtype": "bfloat16", "num_gpu_blocks": 7},
        {"accelerator": "H100", "tensor_parallel": 4},
    ],
)
def test_what_agrees_or_cannot_be_compared(wanted: dict[str, Any]) -> None:
    assert contract.mismatch(wanted, REPORTED) is None


@pytest.mark.parametrize(
    ("key", "wanted", "text"),
    [
        ("version", "0.31.0", 'version is "0.32.0", and engine_contract wants "0.31.0"'),
        ("max_model_len", 1, "max_model_len is 32768, and engine_contract wants 1"),
        ("block_size", 32, 'block_size is "16", and engine_contract wants 32'),
        ("block_size", "16 ", None),
        ("max_model_len", 32768.0, None),
        ("max_model_len", 32768.5, "max_model_len is 32768, and engine_contract wants 32768.5"),
        ("version", "0.32", 'version is "0.32.0", and engine_contract wants "0.32"'),
        ("version", 0.32, 'version is "0.32.0", and engine_contract wants 0.32'),
    ],
)
def test_one_key(key: str, wanted: object, text: str | None) -> None:
    assert contract.mismatch({key: wanted}, REPORTED) == text


def test_every_difference_is_told_by_key() -> None:
    text = contract.mismatch({"version": "1", "model": "n", "cache_dtype": "auto"}, REPORTED)
    assert text is not None
    assert [part.split()[0] for part in text.split("; ")] == ["model", "version"]


@given(st.dictionaries(st.sampled_from(sorted(contract.CHECKED)), _plain))
def test_an_engine_that_reports_what_is_wanted_agrees(wanted: dict[str, Any]) -> None:
    assert contract.mismatch(wanted, wanted) is None
    assert contract.mismatch(wanted, {}) is None


def test_what_has_to_be_asked_for() -> None:
    assert not contract.needs(None, contract.FROM_MODELS)
    assert not contract.needs({"version": "1"}, contract.FROM_MODELS)
    assert contract.needs({"model": "m"}, contract.FROM_MODELS)
