"""Any stream in any pieces is relayed alike: whole events, in order, none lost and none repeated.

The first byte of an input sets the options (see `_OPTIONS`), the rest is what the engine sends.
"""

from __future__ import annotations

import attrs

from fuzz.mutate import change_stream
from fuzz.pieces import cuttings, sizes, take_option
from narwhal.model import NarwhalError, ResponseTooLarge, Route, StreamFailed
from narwhal.wire.chunks import DONE, Usage, find_error, is_usage_only, parse_chunk
from narwhal.wire.decode import DecodeStream
from narwhal.wire.sse import EventSplitter, event_data

_OPTIONS = {"chat": 1, "strip": 2, "small": 4}
_SMALL, _LARGE = 400, 1 << 20

change = change_stream


@attrs.frozen
class _Relayed:
    """What came of a stream."""

    output: bytes
    ended: tuple[str, str, str, bytes] | None
    """The error's type, text, code and body; `None` for a stream that ended well."""
    first_token: bool
    done: bool
    tokens: int
    usage: Usage | None


def check(data: bytes) -> None:
    option, stream = take_option(data)
    route = Route.CHAT if option & _OPTIONS["chat"] else Route.COMPLETIONS
    strip = bool(option & _OPTIONS["strip"])
    most = _SMALL if option & _OPTIONS["small"] else _LARGE
    whole = _relay([stream], route, strip=strip, most=most)
    for pieces in cuttings(stream):
        assert _relay(pieces, route, strip=strip, most=most) == whole, (
            f"differs for {sizes(pieces)}"
        )
    _check_output(stream, whole, strip=strip)


def _relay(pieces: list[bytes], route: Route, *, strip: bool, most: int) -> _Relayed:
    decode = DecodeStream(route=route, strip_usage=strip, max_held=most)
    output = bytearray()
    fed = 0
    ended: NarwhalError | None = None
    try:
        for piece in pieces:
            output += decode.feed(piece)
            fed += len(piece)
            if not strip and not decode.done and decode.error is None:
                assert fed - len(output) <= most, "more is held than the bound allows"
        decode.finish()
    except (StreamFailed, ResponseTooLarge) as error:
        ended = error
    return _Relayed(
        output=bytes(output),
        ended=None if ended is None else _facts(ended),
        first_token=decode.first_token,
        done=decode.done,
        tokens=decode.tokens,
        usage=decode.usage,
    )


def _facts(error: NarwhalError) -> tuple[str, str, str, bytes]:
    body = error.body if isinstance(error, StreamFailed) else b""
    return type(error).__name__, str(error), error.code, body


def _check_output(stream: bytes, seen: _Relayed, *, strip: bool) -> None:
    """Hold the output against the events of the stream."""
    if not seen.first_token:
        assert not seen.output, "something was sent on before the first token"
        return
    rest = seen.output
    last, following = b"", b""
    for event in EventSplitter().feed(stream):
        if strip and _is_usage(event) and (b'"usage"' in event or not rest.startswith(event)):
            continue
        if not rest:
            following = event
            break
        assert rest.startswith(event), "an event was lost, repeated or changed"
        rest = rest[len(event) :]
        last = event
    assert not rest, "something was sent on that is no event of the stream"
    code = seen.ended[2] if seen.ended else None
    if code is None:
        assert seen.done
        assert (event_data(last) or b"").strip() == DONE, "it ended without [DONE]"
    elif code == "stream_cut":
        assert not following, "an event was held back"
    elif code == "stream_error":
        body = event_data(following)
        assert body is not None
        assert find_error(parse_chunk(body), body), "it stopped at an event that is no error"


def _is_usage(event: bytes) -> bool:
    data = event_data(event)
    try:
        return data is not None and is_usage_only(parse_chunk(data))
    except StreamFailed:
        return False
