"""Any stream in any pieces gives the same answer, which has all of it, or the same `StreamFailed`.

The first byte of an input sets the options (see `_OPTIONS`), the rest is what the engine sends.
"""

from __future__ import annotations

from typing import Any

from fuzz import other
from fuzz.mutate import change_stream
from fuzz.pieces import cuttings, sizes, take_option
from narwhal.model import NarwhalError, ResponseTooLarge, Route, StreamFailed
from narwhal.wire.assembly import Assembler
from narwhal.wire.chunks import DONE, parse_chunk
from narwhal.wire.decode import DecodeStream
from narwhal.wire.sse import EventSplitter, event_data

_OPTIONS = {"chat": 1, "template": 2, "small": 4}
_SMALL, _LARGE = 400, 1 << 20
# What a prefill's answer teaches, cut down to one key of each kind.
_TEMPLATE: dict[str, Any] = {
    "id": None,
    "choices": {"index": None, "text": "", "message": {"content": None, "tool_calls": []}},
    "usage": {"prompt_tokens": None, "details": None},
    "kv_transfer_params": None,
}

change = change_stream


def check(data: bytes) -> None:
    option, stream = take_option(data)
    route = Route.CHAT if option & _OPTIONS["chat"] else Route.COMPLETIONS
    template = _TEMPLATE if option & _OPTIONS["template"] else None
    most = _SMALL if option & _OPTIONS["small"] else _LARGE
    whole = _assemble([stream], route, template, most)
    for pieces in cuttings(stream):
        assert _assemble(pieces, route, template, most) == whole, f"differs for {sizes(pieces)}"
    answer = whole[0]
    if isinstance(answer, bytes) and not other.is_deep(stream):
        read = other.read(answer)
        _check_answer(read, _chunks(stream, most), route)
        _check_size(read, most)
        relay = DecodeStream(route=route, strip_usage=False, max_held=_LARGE)
        relay.feed(stream)
        assert relay.done, "a stream that makes an answer is not relayed to its end"


def _assemble(
    pieces: list[bytes], route: Route, template: dict[str, Any] | None, most: int
) -> tuple[object, ...]:
    """The answer or the error, and what was learnt on the way."""
    assembler = Assembler(route=route, template=template, max_bytes=most)
    ended: bytes | NarwhalError
    try:
        for piece in pieces:
            assert assembler.feed(piece) == b""
        ended = assembler.finish()
    except (StreamFailed, ResponseTooLarge) as error:
        ended = error
    came_to: object = ended
    if isinstance(ended, NarwhalError):
        came_to = (type(ended).__name__, str(ended), ended.code)
    return came_to, assembler.first_token, assembler.done, assembler.tokens, assembler.usage


def _chunks(stream: bytes, most: int) -> list[dict[str, Any]]:
    chunks = []
    for event in EventSplitter().feed(stream):
        assert len(event) <= most, "an event over the bound was taken"
        data = event_data(event)
        if data is None:
            continue
        if data.strip() == DONE:
            break
        chunks.append(parse_chunk(data))
    return chunks


def _check_answer(answer: dict[str, Any], chunks: list[dict[str, Any]], route: Route) -> None:
    """Every key, every choice and every piece of text is there."""
    assert isinstance(answer["choices"], list)
    for chunk in chunks:
        lost = set(chunk) - set(answer) - {"kv_transfer_params", "usage"}
        assert not lost, f"lost from the top level: {lost}"
    pieces: dict[int, list[Any]] = {}
    for chunk in chunks:
        for choice in chunk.get("choices") or []:
            texts = pieces.setdefault(choice.get("index", 0), [])
            texts.append(_text(choice, route))
    assert [choice["index"] for choice in answer["choices"]] == sorted(pieces)
    for choice in answer["choices"]:
        texts = pieces[choice["index"]]
        if not all(isinstance(text, str) for text in texts):
            continue
        whole = choice["text"] if route is Route.COMPLETIONS else choice["message"]["content"]
        assert (whole or "") == "".join(texts), "text was lost or moved"


def _check_size(answer: dict[str, Any], most: int) -> None:
    """The bound is on choices as JSON, which no text in them is longer than."""
    messages = [choice.get("message") or {} for choice in answer["choices"]]
    texts = [each for message in messages for each in message.values()]
    texts += [choice.get("text") for choice in answer["choices"]]
    size = sum(len(text.encode()) for text in texts if isinstance(text, str))
    assert size <= most, "more is kept than the bound allows"


def _text(choice: dict[str, Any], route: Route) -> object:
    """The text of a choice in one chunk; anything but text if it has none of the usual form."""
    if route is Route.COMPLETIONS:
        return choice.get("text", "")
    if "message" in choice:
        return None
    delta = choice.get("delta")
    content = delta.get("content", "") if isinstance(delta, dict) else ""
    return "" if content is None else content
