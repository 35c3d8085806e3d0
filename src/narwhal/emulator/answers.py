"""A whole answer, in the shape, key order and nulls of vLLM 0.32.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from narwhal.emulator.envelope import VENDOR_CHOICE, VENDOR_TOP
from narwhal.emulator.logprobs import chat_logprobs, completion_logprobs
from narwhal.emulator.tokens import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.emulator.envelope import Choice, Envelope
    from narwhal.emulator.tokens import Piece


def whole_answer(
    envelope: Envelope, choices: Sequence[Choice], kv_transfer_params: dict[str, Any] | None
) -> bytes:
    """The answer to a request that is not streamed; shows all of every choice."""
    for choice in choices:
        choice.shown = choice.plan.length
    chat = envelope.chat
    make = _chat_choice if chat else _completion_choice
    body: dict[str, Any] = {
        **envelope.head(),
        "choices": [make(envelope, choice) for choice in choices],
        "service_tier": None,
        "system_fingerprint": envelope.fingerprint,
    }
    if envelope.usage:
        body["usage"] = {
            **envelope.counts(choices),
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        }
    if chat:
        ids = choices[0].prompt.ids if envelope.request.return_token_ids else None
        body |= {"prompt_logprobs": None, "prompt_token_ids": ids, "prompt_text": None}
    body |= {
        "kv_transfer_params": kv_transfer_params,
        "ec_transfer_params": None,
        "metrics": None,
    }
    if envelope.vendor:
        body |= VENDOR_TOP
    return msgspec.json.encode(body)


def _completion_choice(envelope: Envelope, choice: Choice) -> dict[str, Any]:
    pieces = [choice.plan[place] for place in range(choice.plan.length)]
    request = envelope.request
    echoed = choice.echo if request.echo else ""
    logprobs = None
    if request.logprobs is not None:
        logprobs = completion_logprobs(pieces, request.logprobs, len(echoed))
    finish = envelope.finish_of(choice)
    body = {
        "index": choice.index,
        "text": echoed + _text(envelope, pieces, Kind.CONTENT),
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": choice.plan.stop_reason if finish is not None else None,
        "token_ids": [piece.token for piece in pieces] if request.return_token_ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": choice.prompt.ids if request.return_token_ids else None,
        "routed_experts": None,
    }
    return body | VENDOR_CHOICE if envelope.vendor else body


def _chat_choice(envelope: Envelope, choice: Choice) -> dict[str, Any]:
    pieces = [choice.plan[place] for place in range(choice.plan.length)]
    request = envelope.request
    calls, text = _tool_calls(pieces), _text(envelope, pieces, Kind.CONTENT)
    message: dict[str, Any] = {
        "role": "assistant",
        # A call that was forced has empty text beside it, one that the model chose has none.
        "content": text if text or request.forces_tool or not calls else None,
        "refusal": _text(envelope, pieces, Kind.REFUSAL) or None,
        "annotations": None,
        "audio": None,
        "function_call": None,
    }
    if calls:
        message["tool_calls"] = calls
    message["reasoning"] = _text(envelope, pieces, Kind.REASONING) or None
    if envelope.vendor:
        message["vendor_text"] = "".join(piece.text for piece in pieces)
    logprobs = None
    if request.logprobs is not None:
        logprobs = chat_logprobs(pieces, request.logprobs)
    finish = envelope.finish_of(choice)
    body = {
        "index": choice.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish,
        "stop_reason": choice.plan.stop_reason if finish is not None else None,
        "token_ids": [piece.token for piece in pieces] if request.return_token_ids else None,
        "routed_experts": None,
    }
    return body | VENDOR_CHOICE if envelope.vendor else body


def _text(envelope: Envelope, pieces: Sequence[Piece], kind: Kind) -> str:
    text = "".join(piece.text for piece in pieces if piece.kind is kind)
    if kind is Kind.CONTENT and envelope.huge:
        return "x" * envelope.huge
    return text


def _tool_calls(pieces: Sequence[Piece]) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    for piece in pieces:
        if piece.opens is not None:
            call = {key: value for key, value in piece.opens.items() if key != "index"}
            calls.append({**call, "function": {"name": "", "arguments": "", **call["function"]}})
        elif piece.kind is Kind.TOOL:
            calls[piece.call]["function"]["arguments"] += piece.text
    return calls
