"""Any prefill answer is an `EngineError` or has a complete handoff, spliced as it is into the legs.

An input is read twice: as an answer of a prefill engine, and as the descriptor inside one.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from fuzz import other
from fuzz.mutate import change_json
from narwhal.model import EngineProtocolError, HandoffRejected, Route
from narwhal.wire.assembly import Assembler
from narwhal.wire.handoff import Handoff, parse_handoff
from narwhal.wire.openai import parse_request
from narwhal.wire.vllm import PrefillAnswer, decode_body, parse_prefill, release_body

_REQUEST = parse_request(Route.COMPLETIONS, b'{"model":"m","prompt":"x","stream":true}', model="m")
_STREAM = b'data: {"choices":[{"index":0,"text":"a","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
_HIGHEST_PORT = 65535

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])

change = change_json


def check(data: bytes) -> None:
    _check_answer(data)
    _check_answer(b'{"kv_transfer_params":%b}' % data)
    with contextlib.suppress(HandoffRejected):
        parse_handoff(data)


def _check_answer(body: bytes) -> None:
    answers = [_read(body, whole=True), _read(body, whole=False)]
    whole, bare = answers
    assert (whole is None) == (bare is None)
    if whole is None or bare is None:
        return
    assert whole.handoff == bare.handoff
    assert whole.prompt_tokens == bare.prompt_tokens
    if other.is_deep(body):
        return
    _check_handoff(whole.handoff, body)
    _check_template(whole)


def _read(body: bytes, *, whole: bool) -> PrefillAnswer | None:
    try:
        return parse_prefill(body, whole=whole)
    except (HandoffRejected, EngineProtocolError):
        return None


def _check_handoff(handoff: Handoff, body: bytes) -> None:
    """Against what a decoder looks for, in the words of another parser."""
    assert bytes(_fields.decode(body)["kv_transfer_params"]) == handoff.raw
    read = other.read(handoff.raw)
    assert read["do_remote_prefill"] is True
    assert not read.get("do_remote_decode")
    for name in ("remote_engine_id", "remote_host"):
        assert isinstance(read[name], str)
        assert read[name]
    assert type(read["remote_port"]) is int
    assert 1 <= read["remote_port"] <= _HIGHEST_PORT
    assert _count(read["remote_block_ids"]) == handoff.blocks > 0
    if "remote_request_id" in read:
        assert isinstance(read["remote_request_id"], str)
        assert read["remote_request_id"] == handoff.remote_request_id != ""
    for leg in (decode_body(_REQUEST, handoff), release_body("m", handoff)):
        other.read(leg)
        assert bytes(_fields.decode(leg)["kv_transfer_params"]) == handoff.raw


def _count(blocks: list[Any]) -> int:
    assert len({isinstance(block, list) for block in blocks}) == 1, "ids and lists are mixed"
    flat = [each for block in blocks for each in (block if isinstance(block, list) else [block])]
    assert all(type(each) is int and each >= 0 for each in flat)
    return len(flat)


def _check_template(answer: PrefillAnswer) -> None:
    """It makes an answer, and no value of the prefill's own is in it."""
    assembler = Assembler(route=Route.COMPLETIONS, template=answer.template, max_bytes=1 << 20)
    assembler.feed(_STREAM)
    made = other.read(assembler.finish())
    assert made["choices"][0]["text"] == "a"
    assert made.get("kv_transfer_params") is None, "the handoff is in the client's answer"
