"""Changes of JSON: still JSON, other JSON, and the same for the same seed."""

from __future__ import annotations

import json
import random

import pytest

from fuzz import targets
from fuzz.mutate import change_json, change_stream
from narwhal.wire.sse import EventSplitter, event_data

FLEET = next(p for p in targets.corpus("fleet_file") if p.name == "every-setting").read_bytes()


@pytest.mark.parametrize("data", [FLEET, b'{"a":[1,{"b":null}]}', b'[[],"x",{}]', b"[1]"])
def test_json_stays_json(data: bytes) -> None:
    made = [change_json(data, random.Random(seed)) for seed in range(200)]
    assert made == [change_json(data, random.Random(seed)) for seed in range(200)]
    documents = [json.loads(each) for each in made if each is not None]
    assert len(documents) == len(made)
    other = [document for document in documents if document != json.loads(data)]
    assert len(other) > len(made) / 2


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b"{}", b"7", b"[" * 100_000])
def test_what_has_nothing_to_change_is_left_to_the_fuzzer(data: bytes) -> None:
    assert change_json(data, random.Random(1)) is None


def test_a_stream_stays_a_stream() -> None:
    events = [b'data: {"n":%d}\n\n' % n for n in range(3)] + [b"data: [DONE]\n\n"]
    made = {change_stream(b"1" + b"".join(events), random.Random(seed)) for seed in range(200)}
    assert len(made) > 20
    for stream in made:
        assert stream is None or event_data(EventSplitter().feed(stream)[-1]) is not None


@pytest.mark.parametrize("data", [b"", b"data: {}\n", b": c\n\n"])
def test_what_has_no_event_is_left_to_the_fuzzer(data: bytes) -> None:
    assert change_stream(data, random.Random(1)) is None
