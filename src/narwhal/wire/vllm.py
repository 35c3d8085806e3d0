"""The dialect of vLLM's OpenAI server with a NIXL connector: the bodies of every leg.

A leg's body is spliced from the slices of the client's own body. The prompt's bytes are never
decoded and encoded again, so both legs carry it identically: a decoder that sees another prompt
than the cache was made of answers wrong tokens, or dies.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from narwhal.model import EngineProtocolError, Route
from narwhal.wire.errors import EngineErrorBody, parse_engine_error
from narwhal.wire.fields import MOST_TOKENS, first_byte, is_null, read_object, shorten
from narwhal.wire.handoff import Handoff, parse_handoff

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from narwhal.wire.openai import CompletionRequest

__all__ = [
    "EngineErrorBody",
    "Handoff",
    "PrefillAnswer",
    "TokenIds",
    "decode_body",
    "forces_tool",
    "parse_engine_error",
    "parse_prefill",
    "parse_token_ids",
    "parse_tokenize",
    "prefill_body",
    "release_body",
    "returns_ids",
    "tokenize_body",
]

_PREFILL_TRANSFER = (
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)
# Fields the prefill leg goes without. Some engines hand over only a sequence that ended by its
# length, and a stop string ends it in the front end, as if the client had left: nothing may stop
# the one token. `min_tokens` above 1 and `stream_options` without `stream` are refused. The rest
# only makes the answer longer, by as much as the prompt, and nobody reads it.
_NOT_FOR_PREFILL = frozenset(
    {
        "stop",
        "stop_token_ids",
        "include_stop_str_in_output",
        "min_tokens",
        "stream_options",
        "echo",
        "return_token_ids",
        "return_prompt_text",
        "request_id",
    }
)
# What decides how a conversation becomes a prompt, beside the messages.
_TEMPLATE_FIELDS = (
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "media_io_kwargs",
    "mm_processor_kwargs",
    "tools",
    "tool_choice",
    "documents",
    "reasoning_effort",
)


class _Count(msgspec.Struct):
    count: int


class TokenIds(msgspec.Struct, frozen=True):
    """A tokenised prompt."""

    tokens: tuple[int, ...]
    max_model_len: int | None = None
    """Tokens that prompt and answer may have together, where the engine says."""


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None


_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list = msgspec.json.Decoder(list[msgspec.Raw])
_count = msgspec.json.Decoder(_Count)
_token_ids = msgspec.json.Decoder(TokenIds)
_usage = msgspec.json.Decoder(_Usage)
_number = msgspec.json.Decoder(float)


def prefill_body(request: CompletionRequest) -> bytes:
    """The leg that makes the cache: one token, whole, kept for a decoder to come.

    `max_tokens` is always set, as every version knows it; `max_completion_tokens`, which wins
    over it on the chat route, wherever the client sent it, be it null.
    """
    changes: dict[str, bytes] = {
        "stream": b"false",
        "max_tokens": b"1",
        "ignore_eos": b"true",
        "kv_transfer_params": _PREFILL_TRANSFER,
    }
    if "max_completion_tokens" in request.fields:
        changes["max_completion_tokens"] = b"1"
    return _splice(request.fields, changes, _NOT_FOR_PREFILL)


def decode_body(request: CompletionRequest, handoff: Handoff | None) -> bytes:
    """The leg that generates, always streamed and with `usage`; plain if there is no handoff.

    The client's fields stay as they are, absent ones absent and nulls null, but for these:

    - `continuous_usage_stats` goes unless the client asked for usage, as it would come to life
      with the router's own asking.
    - `prompt_logprobs` goes from a leg with a handoff: a decoder has not computed the prompt, and
      reads memory that nothing was written to. A whole answer gets them from the prefill. One
      that asks to stream them is left for the engine to refuse, but for 0, which it lets pass.
      In a plain leg the field stays: the engine refuses it, and a refusal is better than an
      answer that lacks what was asked for.
    - `request_id` goes: a second attempt would meet its own name.
    """
    changes = {"stream": b"true", "stream_options": _stream_options(request)}
    dropped = {"request_id"}
    if handoff is None:
        dropped.add("kv_transfer_params")
    else:
        changes["kv_transfer_params"] = handoff.raw
        if not request.stream or _is_zero(request.fields.get("prompt_logprobs")):
            dropped.add("prompt_logprobs")
    return _splice(request.fields, changes, dropped)


def forces_tool(request: CompletionRequest) -> bool:
    """Whether the model has no choice but to call a tool: one is named, or any is required."""
    if request.route is not Route.CHAT or is_null(request.fields.get("tools")):
        return False
    choice = request.fields.get("tool_choice")
    return choice is not None and (first_byte(choice) == b"{" or bytes(choice) == b'"required"')


def returns_ids(request: CompletionRequest) -> bool:
    """Whether the client asked for token ids, as an engine reads it."""
    asked = request.fields.get("return_token_ids")
    return not is_null(asked) and not _is_zero(asked)


def release_body(model: str, handoff: Handoff) -> bytes:
    """A decode leg for /v1/completions that frees the producer: one token, of one token.

    The decoder pulls one block, tells the producer that it has, and makes a token that nobody
    reads. To ask for none would be cheaper: vLLM refuses that and tells the producer all the same,
    but not if it has to shake hands with the producer first and has nothing else to do. Then the
    producer hears of it with the decoder's next request, or when the lease ends (seen with
    vLLM 0.32.0: after all of 30 s).
    """
    prefix = b'{"model":%b,"prompt":[0],"max_tokens":1,"stream":false,"kv_transfer_params":'
    return b"".join((prefix % msgspec.json.encode(model), handoff.raw, b"}"))


def tokenize_body(request: CompletionRequest) -> bytes:
    """The body for POST /tokenize that counts this prompt as the legs will see it.

    Not for a prompt of token ids, whose count is `prompt_tokens`.
    """
    fields = request.fields
    kept: dict[str, msgspec.Raw] = {"model": fields["model"]}
    if request.route is Route.CHAT:
        kept["messages"] = fields["messages"]
        kept |= {name: fields[name] for name in _TEMPLATE_FIELDS if name in fields}
        return _splice(kept, {}, ())
    prompt = fields["prompt"]
    # The one prompt in a list of its own, which that route does not take.
    kept["prompt"] = _list.decode(prompt)[0] if first_byte(prompt) == b"[" else prompt
    if "add_special_tokens" in fields:
        kept["add_special_tokens"] = fields["add_special_tokens"]
    return _splice(kept, {}, ())


def parse_tokenize(body: bytes) -> int:
    """The count in an answer of POST /tokenize; `EngineProtocolError` if there is none."""
    try:
        count = _count.decode(body).count
    except (msgspec.MsgspecError, RecursionError) as error:
        raise EngineProtocolError(f"the tokenize answer has no count: {error}") from None
    if not 0 <= count <= MOST_TOKENS:
        raise EngineProtocolError(f"the tokenize answer counts {shorten(str(count))} tokens")
    return count


def parse_token_ids(body: bytes) -> TokenIds:
    """An answer of POST /tokenize with its tokens; `EngineProtocolError` if it has none."""
    try:
        return _token_ids.decode(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise EngineProtocolError(f"the tokenize answer has no tokens: {error}") from None


@attrs.frozen(kw_only=True)
class PrefillAnswer:
    """What is of use in the answer of a prefill leg. Its token is not."""

    handoff: Handoff
    template: Mapping[str, Any]
    """The keys of this engine's whole answers, in its order, with what each holds by default:
    null, or something empty. `choices` is that of the first choice, `message` and `usage` are
    mappings of the same kind. The one thing taken over is `prompt_logprobs`, as raw JSON: only
    the engine that read the prompt has them."""
    prompt_tokens: int | None
    """As the engine counted them."""


def parse_prefill(body: bytes, *, whole: bool = True) -> PrefillAnswer:
    """Read a prefill's answer of status 200; `whole` if the client's answer is to be assembled.

    Raises `HandoffRejected` if it hands over nothing, or not enough for a decoder, and
    `EngineProtocolError` if it is not a JSON object.
    """
    try:
        body.decode()  # its slices go out again unread
        answer = _object.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise EngineProtocolError(f"the prefill answer is not a JSON object: {error}") from None
    handoff = parse_handoff(answer.get("kv_transfer_params"))
    document = _lenient(body) if whole else {}
    return PrefillAnswer(
        handoff=handoff,
        template=_template(document, answer) if whole else {},
        prompt_tokens=_prompt_tokens(answer.get("usage")),
    )


def _prompt_tokens(usage: msgspec.Raw | None) -> int | None:
    try:
        return None if usage is None else _usage.decode(usage).prompt_tokens
    except (msgspec.MsgspecError, RecursionError):
        return None


def _template(document: Any, answer: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    if not isinstance(document, dict):
        return {}  # nested beyond the interpreter's stack: nothing to go by
    template = _defaults(document)
    usage, choices = document.get("usage"), document.get("choices")
    if "usage" in document:
        template["usage"] = dict.fromkeys(usage if isinstance(usage, dict) else ())
    choice = choices[0] if isinstance(choices, list) and choices else {}
    template["choices"] = _defaults(choice)
    if isinstance(choice, dict) and "message" in choice:
        template["choices"]["message"] = _defaults(choice["message"])
    prompt = answer.get("prompt_logprobs")
    if not is_null(prompt):
        template["prompt_logprobs"] = prompt
    if isinstance(choice, dict) and choice.get("prompt_logprobs") is not None:
        template["choices"]["prompt_logprobs"] = _raw_of_choice(answer, "prompt_logprobs")
    return template


def _raw_of_choice(answer: Mapping[str, msgspec.Raw], name: str) -> msgspec.Raw:
    return _object.decode(_list.decode(answer["choices"])[0])[name]


def _defaults(fields: Any) -> dict[str, Any]:
    """Each key with null, or with the empty value it has now.

    What a field of the prefill's answer holds is of that answer alone: not one value of it that
    says anything may show up in the answer that a client gets.
    """
    if not isinstance(fields, dict):
        return {}
    return {key: value if value in ("", [], {}) else None for key, value in fields.items()}


def _lenient(body: bytes) -> Any:
    """The value, or `None`: a template may be as small as the answer."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _stream_options(request: CompletionRequest) -> bytes:
    """The client's options with `include_usage` set; see `decode_body`."""
    options = read_object(request.fields, "stream_options") if request.stream else None
    dropped = () if request.include_usage else ("continuous_usage_stats",)
    return _splice(options or {}, {"include_usage": b"true"}, dropped)


def _is_zero(value: msgspec.Raw | None) -> bool:
    """Whether an engine reads it as 0, however that is written."""
    try:
        return value is not None and _number.decode(value) == 0
    except msgspec.ValidationError:
        return value is not None and bytes(value) == b"false"


def _splice(
    fields: Mapping[str, msgspec.Raw | bytes], changes: Mapping[str, bytes], dropped: Iterable[str]
) -> bytes:
    """Write `fields` in their order, some replaced, some left out, some added; never none."""
    parts: list[bytes | msgspec.Raw] = []
    separator = b"{"
    for key, value in fields.items():
        if key not in dropped:
            parts += (separator, _key(key), changes.get(key, value))
            separator = b","
    for key, change in changes.items():
        if key not in fields:
            parts += (separator, _key(key), change)
            separator = b","
    parts.append(b"}")
    return b"".join(parts)


@lru_cache(maxsize=256)
def _key(name: str) -> bytes:
    """A key with its colon; clients choose their names, so the memory is bounded."""
    return msgspec.json.encode(name) + b":"
