"""Whether an engine is what the fleet file's `engine_contract` says, by what it reports itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FROM_MODELS = frozenset({"model", "max_model_len"})
"""Keys that an engine reports in `/v1/models`."""
FROM_METRICS = frozenset(
    {"block_size", "num_gpu_blocks", "kv_capacity_tokens", "dtype", "cache_dtype"}
)
"""Keys that it reports in `/metrics`, as far as its version tells them."""
CHECKED = frozenset({"version"}) | FROM_MODELS | FROM_METRICS
"""Keys of a contract that can be compared. Any other is for people and profiles."""


def needs(contract: Mapping[str, object] | None, keys: frozenset[str]) -> bool:
    """Whether the contract says anything about one of `keys`."""
    return bool(contract) and not keys.isdisjoint(contract or ())


def mismatch(contract: Mapping[str, object], reported: Mapping[str, object]) -> str | None:
    """What differs, by key, with what is wanted and what is reported; None if nothing does.

    Only what both sides name is compared, and only text and numbers: 32768 and "32768" are the
    same, as engines report numbers as text. A wanted `null` wants nothing.
    """
    differing = [
        f"{key} is {_shown(reported[key])}, and engine_contract wants {_shown(wanted)}"
        for key, wanted in sorted(contract.items())
        if key in CHECKED and key in reported and not _same(wanted, reported[key])
    ]
    return "; ".join(differing) or None


def _same(wanted: object, reported: object) -> bool:
    if isinstance(wanted, bool) or not isinstance(wanted, str | int | float):
        return True  # in a form that no engine reports
    return _plain(wanted) == _plain(reported)


def _plain(value: object) -> object:
    """A number if it is one, or the text of one; what else it is as it stands."""
    if isinstance(value, str):
        text = value.strip()
        return int(text) if text.isascii() and text.isdecimal() else text
    return value


def _shown(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
