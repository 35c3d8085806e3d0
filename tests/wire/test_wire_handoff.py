"""A descriptor that kills decoders does not get past the check; one that works is not touched."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.model import HandoffRejected
from narwhal.wire.handoff import parse_handoff

CURRENT: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [[7, 8], [9]],
    "remote_engine_id": "0c5d",
    "remote_request_id": "cmpl-abc",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
    "remote_num_tokens": 198,
    "transfer_mode": "pull",
}
OLD: dict[str, Any] = {
    "do_remote_prefill": True,
    "do_remote_decode": False,
    "remote_block_ids": [1, 2, 3],
    "remote_engine_id": "0c5d",
    "remote_host": "10.0.0.1",
    "remote_port": 5600,
    "tp_size": 1,
}


def read(document: object) -> Any:
    return parse_handoff(json.dumps(document).encode())


def test_of_a_current_engine() -> None:
    handoff = read(CURRENT)
    assert (handoff.blocks, handoff.remote_request_id) == (3, "cmpl-abc")


def test_of_an_older_engine() -> None:
    handoff = read(OLD)
    assert (handoff.blocks, handoff.remote_request_id, handoff.remote_num_tokens) == (3, None, None)


def test_it_passes_on_unchanged() -> None:
    raw = json.dumps({"new": [{"x": 1.50}], **CURRENT}, indent=1).encode()
    assert parse_handoff(raw).raw == raw


@pytest.mark.parametrize("value", [None, b"null"])
def test_there_is_none(value: bytes | None) -> None:
    with pytest.raises(HandoffRejected) as caught:
        parse_handoff(value)
    assert caught.value.missing


BAD: dict[str, list[object]] = {
    "do_remote_prefill": [False, None, 1, "true"],
    "do_remote_decode": [True, 1],
    "remote_block_ids": [None, [], [[]], [[], []], {}, "7", [None], [1.5], [True], [-1], ["7"],
                         [[1], 2], [[[1]]], [[1, None]], [[1], None]],
    "remote_engine_id": [None, "", 5, ["x"]],
    "remote_host": [None, "", 5],
    "remote_port": [None, 0, -1, 65536, "5600", True, 5600.0],
    "remote_request_id": [None, "", 5],
    "remote_num_tokens": ["198"],
}  # fmt: skip


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in BAD.items() for v in values])
@pytest.mark.parametrize("good", [CURRENT, OLD])
def test_a_value_that_is_no_use(good: dict[str, Any], key: str, value: object) -> None:
    with pytest.raises(HandoffRejected, match="incomplete kv_transfer_params") as caught:
        read({**good, key: value})
    assert not caught.value.missing


@pytest.mark.parametrize(
    "key",
    ["do_remote_prefill", "remote_block_ids", "remote_engine_id", "remote_host", "remote_port"],
)
@pytest.mark.parametrize("good", [CURRENT, OLD])
def test_a_key_that_is_missing(good: dict[str, Any], key: str) -> None:
    with pytest.raises(HandoffRejected, match=key):
        read({k: v for k, v in good.items() if k != key})


@pytest.mark.parametrize(
    "key",
    [
        "remote_num_tokens",
        "transfer_mode",
        "remote_blocks_expiry_time",
        "remote_prefill_cached_tokens",
    ],
)
def test_the_request_id_may_be_missing_only_where_engines_do_not_know_it(key: str) -> None:
    with pytest.raises(HandoffRejected, match="remote_request_id is missing"):
        read({**OLD, key: None})
    assert read({**OLD, key: None, "remote_request_id": "x"}).remote_request_id == "x"


def test_groups_without_blocks_are_fine_beside_one_that_has_some() -> None:
    assert read({**CURRENT, "remote_block_ids": [[], [4]]}).blocks == 1


@pytest.mark.parametrize("raw", [b"[]", b"{", b"5", b'""', b"[" * 100_000, b"{}", b"true"])
def test_what_is_no_object(raw: bytes) -> None:
    with pytest.raises(HandoffRejected) as caught:
        parse_handoff(raw)
    assert not caught.value.missing


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 70000) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)


@settings(deadline=None)
@given(changes=st.dictionaries(st.sampled_from(sorted(CURRENT)), JSON), good=st.booleans())
def test_what_gets_past_is_complete(changes: dict[str, Any], good: bool) -> None:
    raw = json.dumps({**(CURRENT if good else OLD), **changes}).encode()
    with contextlib.suppress(HandoffRejected):
        document = json.loads(parse_handoff(raw).raw)
        assert document["do_remote_prefill"] is True
        assert isinstance(document["remote_engine_id"], str)
        assert document["remote_engine_id"]
        assert document["remote_host"]
        assert type(document["remote_port"]) is int
        assert 1 <= document["remote_port"] <= 65535
        blocks = document["remote_block_ids"]
        flat = [x for block in blocks for x in (block if isinstance(block, list) else [block])]
        assert flat
        assert all(type(block) is int and block >= 0 for block in flat)
        assert document.get("remote_request_id", "absent")


@settings(deadline=None)
@given(st.binary(max_size=50) | st.text(max_size=50).map(str.encode))
def test_any_bytes_are_rejected_and_nothing_else(raw: bytes) -> None:
    with pytest.raises(HandoffRejected):
        parse_handoff(raw)


@pytest.mark.parametrize("document", [CURRENT, OLD])
@pytest.mark.parametrize("key", [b"\\ud83d", b"\xff", b"\xed\xa0\x80"])
def test_a_key_that_is_no_text_is_no_other_error(document: dict[str, Any], key: bytes) -> None:
    raw = json.dumps(document).encode()[:-1] + b',"%b":1}' % key
    with contextlib.suppress(HandoffRejected):
        parse_handoff(raw)
