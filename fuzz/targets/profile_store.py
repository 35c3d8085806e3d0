"""Any file is profiles or samples that survive rewriting, or a `ConfigError` whose lines name it.

An input is read three times: as a store, as a store of a certain fleet, and as samples.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fuzz import other
from fuzz.mutate import change_json
from narwhal.model import ConfigError
from narwhal.profiles import (
    FitLimits,
    Profile,
    ProfileStore,
    Refused,
    mean_profile,
    parse_samples,
    parse_store,
    refit,
    sample_bytes,
    store_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Collection

_NAME = "profiles.json"
_FLEET = ("d0", "p0")
_MOST_FITTED = 12
_TARGET_S = 0.05
_WORK = (0, 1, 1000, 10**6)
_COSTS = ("ttft_a", "ttft_b", "ttft_c", "tpot_intercept", "tpot_slope")
_LARGEST = 2**53 - 1

change = change_json


def check(data: bytes) -> None:
    store = _read(data, None)
    fleet = _read(data, _FLEET)
    assert fleet is None or fleet == store
    if store is not None:
        assert (fleet is not None) == (set(store.profiles) == set(_FLEET))
        _check_store(store, data)
    _check_samples(data)


def _read(data: bytes, iids: Collection[str] | None) -> ProfileStore | None:
    try:
        return parse_store(data, name=_NAME, iids=iids)
    except ConfigError as error:
        _check_problems(error)
        return None


def _check_problems(error: ConfigError) -> None:
    assert error.problems, "it is refused for no reason"
    for line in error.problems:
        assert line.startswith(f"{_NAME}: "), f"the file is not named: {line!r}"
        assert line.isprintable(), f"not one line of plain text: {line!r}"


def _check_store(store: ProfileStore, data: bytes) -> None:
    written = store_bytes(store)
    again = parse_store(written, name=_NAME)
    assert again == store
    assert store_bytes(again) == written
    _check_numbers(data)
    for profile in store.profiles.values():
        _check_prices(profile)
    if store.rows:
        _check_prices(mean_profile(list(store.profiles.values())))


def _check_numbers(data: bytes) -> None:
    """What was let pass, in the words of another parser."""
    keys = other.keys(data)
    assert len(set(keys)) == len(keys), "one of two values is made up"
    rows = other.read(data.removeprefix(b"\xef\xbb\xbf"))["profiles"]
    assert len({row["iid"] for row in rows}) == len(rows)
    for row in rows:
        assert set(_COSTS) <= set(row), "a cost is made up"
        for name, value in row.items():
            if name in {"iid", "generation_digest"} or value is None:
                continue
            assert type(value) in {int, float}, f"{name} is no number"
            assert 0 <= value < math.inf, f"{name} is no cost"
            assert not name.endswith(("_tokens", "_requests")) or (
                isinstance(value, int) and value <= _LARGEST
            )
        assert all(type(row[name]) in {int, float} for name in _COSTS)
        assert row["tpot_slope"] > 0


def _check_prices(profile: Profile) -> None:
    prices = [profile.prefill_seconds(n) for n in _WORK]
    assert prices == sorted(prices), "a longer prompt costs less"
    intervals = [profile.decode_interval(n, n) for n in _WORK]
    assert intervals == sorted(intervals), "more work is done sooner"
    assert min(*prices, *intervals) >= 0.0
    seats = [profile.decode_seats(n, _TARGET_S).count for n in _WORK]
    assert seats == sorted(seats, reverse=True), "longer contexts leave more room"


def _check_samples(data: bytes) -> None:
    try:
        store = parse_samples(data, name=_NAME)
    except ConfigError as error:
        _check_problems(error)
        return
    written = sample_bytes(store)
    assert parse_samples(written, name=_NAME) == store
    for samples in store.engines:
        if len(samples.prefill) + len(samples.decode) + len(samples.handoff) <= _MOST_FITTED:
            found = refit(samples, limits=FitLimits(mean=math.inf, worst=math.inf))
            if isinstance(found, Refused):
                assert found.text
            else:
                _check_prices(found)
