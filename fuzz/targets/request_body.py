"""Any body is a `ClientError` or makes two legs of valid JSON that carry the client's own prompt.

The prefill leg asks for one token in every field that bounds output; the decode leg has every
other field of the client's as it came.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fuzz import other
from fuzz.mutate import change_json
from narwhal.model import ClientError, Route
from narwhal.wire.handoff import Handoff
from narwhal.wire.openai import CompletionRequest, parse_request
from narwhal.wire.vllm import decode_body, prefill_body, tokenize_body

_MODEL = "m"
_RAW = b'{"do_remote_prefill":true,"remote_block_ids":[[7]]}'
_HANDOFF = Handoff(raw=_RAW, remote_engine_id="e", remote_host="h", remote_port=1, blocks=1)
_PROMPT = frozenset({"model", "prompt", "messages", "tools", "tool_choice", "chat_template"})
_BOUNDS = ("max_tokens", "max_completion_tokens", "min_tokens")
_CHANGED_FOR_DECODE = frozenset(
    {"stream", "stream_options", "kv_transfer_params", "prompt_logprobs", "request_id"}
)
# 100 characters of the client's, each of which may take ten to be written, and a sentence.
_LONGEST_MESSAGE = 1200

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])

change = change_json


def check(data: bytes) -> None:
    for route in Route:
        try:
            request = parse_request(route, data, model=_MODEL)
        except ClientError as error:
            told = str(error)
        else:
            _check_request(request, data)
            continue
        assert 0 < len(told) <= _LONGEST_MESSAGE, "the client is told nothing, or too much"


def _check_request(request: CompletionRequest, data: bytes) -> None:
    if other.is_deep(data):
        return
    names = other.keys(data)
    assert len(names) == len(set(names)), "two readers may each believe another value"
    sent = _slices(data.removeprefix(b"\xef\xbb\xbf"))
    assert {key: bytes(value) for key, value in request.fields.items()} == sent
    _check_prefill(prefill_body(request), sent)
    for handoff in (None, _HANDOFF):
        _check_decode(decode_body(request, handoff), sent, handoff, stream=request.stream)
    if request.prompt_tokens is None:
        _document(tokenize_body(request))
    else:
        assert request.prompt_tokens > 0


def _check_prefill(body: bytes, sent: dict[str, bytes]) -> None:
    leg = _document(body)
    assert leg["stream"] is False
    assert [leg.get(name, 1) for name in _BOUNDS] == [1, 1, 1], "more than one token is asked for"
    assert leg["kv_transfer_params"]["do_remote_decode"] is True
    assert not {"stop", "stop_token_ids", "stream_options"} & set(leg)
    _check_prompt(body, sent)


def _check_decode(
    body: bytes, sent: dict[str, bytes], handoff: Handoff | None, *, stream: bool
) -> None:
    leg = _document(body)
    assert leg["stream"] is True
    assert leg["stream_options"]["include_usage"] is True
    slices = _slices(body)
    _check_prompt(body, sent)
    for name in sent.keys() - _CHANGED_FOR_DECODE:
        assert slices[name] == sent[name], f"{name} is not as the client sent it"
    assert not slices.keys() - sent.keys() - _CHANGED_FOR_DECODE
    if handoff is None:
        assert "kv_transfer_params" not in leg
        return
    assert slices["kv_transfer_params"] == handoff.raw
    # A decoder cannot compute these, and refuses them in a stream only where it sees a number.
    asked = leg.get("prompt_logprobs")
    assert asked is None or (stream and asked != 0), "a decoder is asked about the prompt"


def _check_prompt(body: bytes, sent: dict[str, bytes]) -> None:
    leg = _slices(body)
    for name in _PROMPT & sent.keys():
        assert leg[name] == sent[name], f"{name} differs from the client's"


def _slices(body: bytes) -> dict[str, bytes]:
    return {key: bytes(value) for key, value in _fields.decode(body).items()}


def _document(body: bytes) -> dict[str, Any]:
    document = other.read(body)
    assert isinstance(document, dict)
    return document
