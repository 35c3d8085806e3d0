"""Stores, profiles and strategies that the tests of profiles share."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from narwhal.model import ConfigError
from narwhal.profiles import (
    DecodeCurve,
    HandoffCurve,
    PrefillCurve,
    Profile,
    ProfileRow,
    ProfileStore,
    Range,
    generation_digest,
    parse_store,
)

FOREIGN = "sha256:" + "0" * 64
DIGEST = generation_digest("0.32.0", "m", {"dtype": "bfloat16"})

OLD_ROW: dict[str, Any] = {
    # As releases 0.3 to 0.7 of narwhal-inference take it.
    "iid": "d0",
    "generation_digest": FOREIGN,
    "kv_capacity_tokens": 1_000_000,
    "ttft_a": 0.0,
    "ttft_b": 1e-6,
    "ttft_c": 0.001,
    "tpot_slope": 1e-9,
    "tpot_intercept": 0.001,
    "decode_min_requests": 1,
    "decode_max_requests": 1024,
    "decode_min_kv_tokens": 1,
    "decode_max_kv_tokens": 1_000_000,
    "decode_fit_mape": 0.01,
    "decode_cv_mape": 0.01,
}
BARE_ROW: dict[str, Any] = {
    "iid": "d0",
    "ttft_a": 4e-9,
    "ttft_b": 1.9e-4,
    "ttft_c": 0.02,
    "tpot_slope": 2.75e-7,
    "tpot_intercept": 0.035,
}
FULL_ROW: dict[str, Any] = OLD_ROW | {
    "generation_digest": DIGEST,
    "tpot_request_slope": 2.5e-4,
    "prefill_min_tokens": 16,
    "prefill_max_tokens": 32_768,
    "prefill_fit_mape": 0.02,
    "prefill_cv_mape": 0.03,
    "handoff_base_s": 0.01,
    "handoff_token_s": 1e-5,
}


def document(*rows: dict[str, Any], **top: Any) -> dict[str, Any]:
    head = {"schema": "narwhal.profiles", "schema_version": 1, "meta": {"by": "me"}}
    return head | {"profiles": list(rows)} | top


def parse(value: object, iids: list[str] | None = None) -> ProfileStore:
    return parse_store(json.dumps(value).encode(), name="p.json", iids=iids)


def problems(value: object, iids: list[str] | None = None) -> list[str]:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    try:
        parse_store(content, name="p.json", iids=iids)
    except ConfigError as error:
        return list(error.problems)
    return []


def profile(**changes: Any) -> Profile:
    """One with round numbers: an interval of 10 ms + 1 ms a request + 1 us a token."""
    values: dict[str, Any] = {
        "prefill": PrefillCurve(a=1e-8, b=1e-4, c=0.01, tokens=Range(16, 8192)),
        "decode": DecodeCurve(
            t0=0.01, tr=1e-3, tk=1e-6, requests=Range(1, 64), kv_tokens=Range(100, 100_000)
        ),
    }
    return Profile(**(values | changes))


# Strategies

coefficients = st.floats(0.0, 1e300) | st.floats(0.0, 1.0) | st.just(0.0)
positive = st.floats(5e-324, 1e300) | st.floats(1e-12, 1.0)
errors = st.none() | st.floats(0.0, 2.0)
tokens = st.integers(0, 2**53 - 1) | st.integers(0, 50_000)


@st.composite
def ranges(draw: st.DrawFn, low: int = 1) -> Range:
    first, second = draw(st.integers(low, 2**53 - 1)), draw(st.integers(max(1, low), 10**6))
    return Range(min(first, second), max(first, second, 1))


prefills = st.builds(
    PrefillCurve,
    a=coefficients,
    b=coefficients,
    c=coefficients,
    tokens=st.none() | ranges(),
    fit_mape=errors,
    cv_mape=errors,
)
decodes = st.builds(
    DecodeCurve,
    t0=coefficients,
    tr=coefficients,
    tk=positive,
    requests=st.none() | ranges(),
    kv_tokens=st.none() | ranges(0),
    fit_mape=errors,
    cv_mape=errors,
)
handoffs = st.builds(HandoffCurve, base_s=coefficients, token_s=coefficients)
profiles = st.builds(
    Profile,
    prefill=prefills,
    decode=decodes,
    handoff=st.none() | handoffs,
    kv_capacity_tokens=st.none() | st.integers(1, 2**53 - 1),
)
iids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,5}", fullmatch=True)
digests = st.none() | st.sampled_from([DIGEST, FOREIGN, "x"])
rows = st.builds(ProfileRow, iid=iids, profile=profiles, generation_digest=digests)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
stores = st.builds(
    ProfileStore,
    rows=st.lists(rows, max_size=4, unique_by=lambda row: row.iid).map(tuple),
    meta=st.dictionaries(st.text(), json_values, max_size=3),
)
