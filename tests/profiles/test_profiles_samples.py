"""The samples file: read as strictly as a store, and enough for the same profile again."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profile_samples import DIGEST, iids, json_values

from narwhal.emulator.settings import TimeModel
from narwhal.model import ConfigError
from narwhal.profiles import (
    DecodeSample,
    EngineSamples,
    HandoffSample,
    Measured,
    PrefillSample,
    ProfileRow,
    SampleStore,
    TextSample,
    parse_samples,
    refit_row,
    sample_bytes,
)

MODEL = TimeModel()
ENGINE: dict[str, Any] = {
    "iid": "d0",
    "version": "0.32.0",
    "process_start_s": 1_700_000_000.25,
    "generation_digest": DIGEST,
    "kv_capacity_tokens": 430_000,
    "prefill": [
        {"tokens": n, "seconds": MODEL.prefill_seconds(n)} for n in (16, 256, 1024, 4096, 9999)
    ],
    "decode": [
        {"requests": r, "kv_tokens": r * c, "interval_s": MODEL.step_seconds(r, r * c)}
        for r in (1, 8, 32)
        for c in (64, 1024, 4096)
    ],
    "handoff": [{"tokens": n, "seconds": 0.001 + 1e-6 * n} for n in (16, 1024, 4096)],
    "text": [{"characters": 380, "tokens": 100}],
}


def document(*engines: dict[str, Any]) -> dict[str, Any]:
    return {
        "schema": "narwhal.profile_samples", "schema_version": 1, "engines": list(engines),
    }  # fmt: skip


def problems(value: object, iids: list[str] | None = None) -> list[str]:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    try:
        parse_samples(content, name="s.json", iids=iids)
    except ConfigError as error:
        return list(error.problems)
    return []


def test_samples_give_the_profile_again() -> None:
    store = parse_samples(json.dumps(document(ENGINE)).encode(), name="s.json", iids=["d0"])
    (samples,) = store.engines
    assert (samples.engine.version, samples.engine.process_start_s) == ("0.32.0", 1_700_000_000.25)
    row = refit_row(samples)
    assert isinstance(row, ProfileRow)
    assert (row.iid, row.bound) == ("d0", True)
    prefill = row.profile.prefill
    assert (prefill.a, prefill.b, prefill.c) == pytest.approx(MODEL.prefill, rel=1e-9)
    again = parse_samples(sample_bytes(store), name="s.json")
    assert again == store
    assert refit_row(again.engines[0]) == row


def test_lists_may_be_absent() -> None:
    bare = {key: ENGINE[key] for key in ("iid", "version", "process_start_s")}
    store = parse_samples(json.dumps(document(bare)).encode(), name="s.json")
    assert store.engines[0].decode == ()
    assert store.engines[0].engine.generation_digest is None


counts = st.integers(1, 2**53 - 1)
seconds = st.floats(1e-9, 1e6)
engines = st.builds(
    EngineSamples,
    engine=st.builds(
        Measured,
        iid=iids,
        version=st.sampled_from(["0.32.0", "x y", "\u00e9"]),
        process_start_s=st.floats(1e-3, 1e12),
        generation_digest=st.none() | st.just(DIGEST),
        kv_capacity_tokens=st.none() | counts,
    ),
    prefill=st.lists(st.builds(PrefillSample, tokens=counts, seconds=seconds)).map(tuple),
    decode=st.lists(
        st.builds(DecodeSample, requests=counts, kv_tokens=counts, interval_s=seconds)
    ).map(tuple),
    handoff=st.lists(st.builds(HandoffSample, tokens=counts, seconds=seconds)).map(tuple),
    text=st.lists(st.builds(TextSample, characters=counts, tokens=counts)).map(tuple),
)


@given(st.lists(engines, max_size=3, unique_by=lambda each: each.engine.iid))
@settings(deadline=None)
def test_what_is_written_is_read(found: list[EngineSamples]) -> None:
    store = SampleStore(tuple(found))
    assert parse_samples(sample_bytes(store), name="s.json") == store
    assert sample_bytes(SampleStore(tuple(found[::-1]))) == sample_bytes(store)


def test_samples_are_replaced_by_engine() -> None:
    store = parse_samples(
        json.dumps(document(ENGINE, ENGINE | {"iid": "d1"})).encode(), name="s.json"
    )
    new = EngineSamples(engine=Measured(iid="d1", version="2", process_start_s=1.0))
    assert store.with_engines([new]).engines == (store.engines[0], new)
    with pytest.raises(ConfigError, match="each engine once"):
        SampleStore((new, new))


HERE = "s.json: engines[0] (d0)"
BAD: list[tuple[dict[str, Any], str]] = [
    ({"version": ""}, 'version must not be empty: ""'),
    ({"version": None}, "version must be text in quotes, not null"),
    ({"process_start_s": 0}, "process_start_s must be positive, not 0"),
    ({"kv_capacity_tokens": 0}, "kv_capacity_tokens must be at least 1, not 0"),
    ({"prefils": []}, "prefils is not a known key; did you mean prefill?"),
    ({"prefill": {}}, "prefill must be a list, not an object"),
    ({"prefill": [1]}, "prefill[0] must be an object, not 1"),
    ({"prefill": [{"tokens": 1}]}, "prefill[0].seconds is missing: it has to be given"),
    ({"prefill": [{"tokens": True, "seconds": 1}]},
     "prefill[0].tokens must be an integer, not true"),
    ({"decode": [{"requests": 1, "kv_tokens": 1, "interval_s": 0}]},
     "decode[0].interval_s must be between 1e-09 and 1000000, not 0"),
    ({"text": [{"characters": 1, "tokens": 0}]}, "text[0].tokens must be at least 1, not 0"),
    ({"handoff": [{"tokens": 1, "seconds": 1, "s": 1}]},
     "handoff[0].s is not a known key; take it out"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "complaint"), BAD)
def test_a_bad_field(changes: dict[str, Any], complaint: str) -> None:
    assert problems(document(ENGINE | changes)) == [f"{HERE}.{complaint}"]


@pytest.mark.parametrize(
    ("whole", "complaint"),
    [
        (b"{", "is not valid JSON"),
        ([], "must be an object, not a list"),
        (document(ENGINE) | {"schema": "narwhal.profiles"}, "schema must be"),
        (document(ENGINE) | {"schema_version": "1"}, "schema_version must be 1"),
        (document(ENGINE) | {"engines": None}, "engines must be a list"),
        ({"schema": "narwhal.profile_samples", "schema_version": 1}, "engines is missing"),
        (document(ENGINE, ENGINE), "engines[1] (d0).iid must be unique"),
        (document(7), "engines[0] must be an object"),  # type: ignore[arg-type]  # the point
        (
            json.dumps(document(ENGINE)).replace("1700000000.25", "NaN").encode(),
            "engines[0] (d0).process_start_s must be a finite number",
        ),
    ],
)
def test_a_bad_whole(whole: Any, complaint: str) -> None:
    (line,) = problems(whole)
    assert line.startswith(f"s.json: {complaint}")


def test_the_engines_are_those_of_the_fleet() -> None:
    assert problems(document(ENGINE), ["d1"]) == [
        "s.json: engines[0] (d0).iid is no engine of the fleet: take it out, or mend its name",
        's.json: engines has nothing about engine "d1" of the fleet: measure it',
    ]


@st.composite
def damaged(draw: st.DrawFn) -> object:
    whole: Any = copy.deepcopy(document(ENGINE))
    holder: Any = whole
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw(st.sampled_from(keys))
        if isinstance(holder[key], dict | list) and holder[key] and draw(st.booleans()):
            holder = holder[key]
            continue
        holder[key] = draw(json_values)
        return whole


@given(damaged())
@settings(deadline=None, max_examples=200)
def test_a_damaged_file(whole: object) -> None:
    lines = problems(whole, ["d0"])
    assert all(line.startswith("s.json: ") and line.isprintable() for line in lines)
