"""The state document: what is written is read, equal states are equal bytes, mistakes are named."""

from __future__ import annotations

import json
import random
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_samples import SAMPLE, states

from narwhal.model import ConfigError
from narwhal.monitor import SavedState, parse_state, state_bytes
from narwhal.telemetry import Counters


def problems(content: bytes) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_state(content, name="state.json")
    return list(caught.value.problems)


def read(content: bytes) -> SavedState | None:
    """The state, or none for the one error there is."""
    refused: tuple[str, ...] | list[str] = ()
    try:
        return parse_state(content, name="s")
    except ConfigError as error:
        refused = error.problems
    assert refused
    assert all(line.startswith("s: ") and line.isprintable() for line in refused)
    return None


def changed(**changes: Any) -> bytes:
    document = json.loads(state_bytes(SAMPLE)) | changes
    return json.dumps({key: value for key, value in document.items() if value != "gone"}).encode()


@given(states())
def test_a_state_survives(state: SavedState) -> None:
    content = state_bytes(state)
    again = parse_state(content, name="s")
    assert again == state
    assert state_bytes(again) == content
    json.loads(content)  # what another program makes of it


@given(states(), st.randoms(use_true_random=False))
def test_equal_states_are_equal_bytes(state: SavedState, rng: random.Random) -> None:
    def shuffled(mapping: Any) -> Any:
        items = [
            (key, shuffled(value) if isinstance(value, dict) else value)
            for key, value in mapping.items()
        ]
        rng.shuffle(items)
        return dict(items)

    engines = list(state.engines)
    rng.shuffle(engines)
    counters = Counters(
        series=shuffled(state.counters.series), rejections=shuffled(state.counters.rejections)
    )
    other = attrs.evolve(state, engines=engines, counters=counters)
    assert other == state
    assert state_bytes(other) == state_bytes(state)


@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 2000), st.integers(0, 20))
def test_any_bytes_parse_or_are_the_one_error(noise: bytes, at: int, cut: int) -> None:
    whole = state_bytes(SAMPLE)
    for content in (noise, whole[:at], whole[:at] + noise + whole[at + cut :]):
        state = read(content)
        assert state is None or parse_state(state_bytes(state), name="s") == state


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=300)
@given(st.sampled_from(sorted(json.loads(state_bytes(SAMPLE)))), values)
def test_any_field_may_be_anything(field: str, value: Any) -> None:
    read(changed(**{field: value}))


ENGINE = {"iid": "p0", "url": "http://x:1", "role": "prefill", "state": "serving"}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"schema": "narwhal.fleet"}, "schema must be"),
        ({"schema": "gone"}, "schema must be"),
        ({"schema_version": 2}, "schema_version must be 1, not 2"),
        ({"schema_version": True}, "schema_version must be 1"),
        ({"written_at": "gone"}, "written_at is missing"),
        ({"written_at": "now"}, "written_at must be a number"),
        ({"written_at": 1e300}, "written_at must be between 0 and"),
        ({"model": ""}, "model must not be empty"),
        ({"engines": "gone"}, "engines is missing"),
        ({"engines": {}}, "engines must be a list"),
        ({"engines": [ENGINE, ENGINE]}, "engines[1] (p0).iid must be unique"),
        ({"engines": [ENGINE | {"role": "both"}]}, "engines[0] (p0).role must be one of"),
        ({"engines": [ENGINE | {"state": "up"}]}, "engines[0] (p0).state must be one of"),
        ({"engines": [ENGINE | {"url": "ftp://x"}]}, "engines[0] (p0).url "),
        ({"engines": [ENGINE | {"reason": "\ud800"}]}, "engines[0] (p0).reason must be Unicode"),
        ({"engines": [ENGINE | {"sate": "x"}]}, "engines[0] (p0).sate is not a known key"),
        ({"engines": [ENGINE | {"process_start_s": "1"}]}, "process_start_s must be a number"),
        ({"notes": 1}, "notes is not a known key"),
        ({"counters": []}, "counters must be an object"),
        ({"counters": {"retrys_total": 1}}, "counters.retrys_total is not a known key"),
        ({"counters": {"ttft_seconds": 1}}, "counters.ttft_seconds is not a known key"),
        ({"counters": {"retries_total": {}}}, "counters.retries_total must be an integer"),
        ({"counters": {"retries_total": 1.5}}, "counters.retries_total must be an integer"),
        ({"counters": {"retries_total": -1}}, "counters.retries_total must be between 0"),
        ({"counters": {"retries_total": True}}, "counters.retries_total must be an integer"),
        ({"counters": {"attempts_total": 1}}, "counters.attempts_total must be an object"),
        ({"counters": {"attempts_total": {"won": 1}}}, "counters.attempts_total.won is not a"),
        (
            {"counters": {"engine_restarts_total": {"p9": 1}}},
            "counters.engine_restarts_total.p9 is not a known key",
        ),
        (
            {"counters": {"requests_total": {"chat": {"completed": 4}}}},
            "counters.requests_total.chat must not be more than were received: 4 ended, 0",
        ),
        ({"rejections": {"nope": 1}}, "rejections.nope is not a known key"),
        ({"rejections": {"queue_full": 0.5}}, "rejections.queue_full must be an integer"),
    ],
)
def test_each_mistake_is_named(changes: dict[str, Any], line: str) -> None:
    found = problems(changed(**changes))
    assert len([each for each in found if line in each]) == 1, found


def test_all_mistakes_are_told_at_once() -> None:
    content = changed(model="", written_at=-1, engines=[ENGINE | {"state": "up"}], counters={})
    assert len(problems(content)) == 3
    (line,) = problems(b"[]")
    assert line == "state.json: must be an object, not a list"
    # Another kind of file: its fields are nobody's mistake.
    (line,) = problems(changed(schema="narwhal.fleet", nonsense=1))
    assert "this is another kind of file" in line


def test_repeated_keys_and_numbers_that_are_none() -> None:
    content = state_bytes(SAMPLE).replace(b'"model": "m"', b'"model": "m", "model": "n"')
    assert "model is given more than once" in problems(content)[0]
    content = state_bytes(SAMPLE).replace(b"1700000000.5", b"NaN")
    assert problems(content) == ["state.json: written_at must be a finite number, not NaN"]


def test_the_time_alone_is_no_news() -> None:
    later = attrs.evolve(SAMPLE, written_at=SAMPLE.written_at + 1)
    assert not later.tells(SAMPLE)
    assert later.tells(None)
    assert attrs.evolve(later, counters=Counters()).tells(SAMPLE)
    assert attrs.evolve(later, engines=SAMPLE.engines[:1]).tells(SAMPLE)
