"""A decode leg's stream on its way to the client: byte for byte, and watched while it passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narwhal.model import ResponseTooLarge, Route, StreamFailed
from narwhal.wire.chunks import (
    DONE,
    Usage,
    carries_token,
    empty,
    find_error,
    is_usage_only,
    parse_chunk,
    read_usage,
    too_large,
    unfinished,
)
from narwhal.wire.sse import EventSplitter, event_data

if TYPE_CHECKING:
    from narwhal.wire.chunks import Chunk

__all__ = ["DecodeStream", "Usage"]

# How an engine writes the beginning of choices that are not empty. Quotes inside a JSON string
# are escaped, so no text that a model writes can look like this.
_CHOICES = (b'"choices":[{', b'"choices": [{')


class DecodeStream:
    """Watches the events of one decode leg and decides which bytes may go on to the client.

    Up to the first token every event is parsed and held, so that another attempt can still
    replace it. From then on complete events pass as they are, all of one read at once. None is
    parsed but for the few that may be an error or a usage count: about 1 us for a token.

    What is forwarded and what is counted depend on the bytes alone, not on how they were cut.
    A malformed event fails the stream before the first token; after it, it passes unread.
    """

    __slots__ = (
        "_held",
        "_held_bytes",
        "_marker",
        "_max_held",
        "_over",
        "_route",
        "_splitter",
        "_strip_usage",
        "done",
        "error",
        "first_token",
        "tokens",
        "usage",
    )

    def __init__(self, *, route: Route, strip_usage: bool, max_held: int) -> None:
        self._route = route
        self._strip_usage = strip_usage
        self._max_held = max_held
        self._splitter = EventSplitter()
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._marker = b'"choices"'
        self._over = False  # done, or failed
        self.first_token = False
        """Whether generated output was seen."""
        self.done = False
        """Whether the engine ended the stream as it should, with `[DONE]`."""
        self.error: StreamFailed | ResponseTooLarge | None = None
        """Why the stream failed, once it did; nothing is forwarded any more."""
        self.tokens = 0
        """Events with generated output: tokens, as long as the engine sends one in each."""
        self.usage: Usage | None = None
        """The engine's own count, from the last event that had one."""

    def feed(self, data: bytes) -> bytes:
        """Take what one read brought; return what may be forwarded: whole events, in order.

        Nothing before the first token, then everything held and everything new. An error event,
        or `[DONE]` before any token, sets `error`; what came before it in the same read is still
        returned, it and all after it never are. Bytes after `[DONE]` are dropped.

        When what has to be held (everything before the first token, and any one event) grows
        over `max_held` bytes, `error` is a `ResponseTooLarge`: raised at once, or left to be
        raised by who asks next if the same read brought something to forward.
        """
        if self.first_token and not self._splitter.pending and self._is_plain(data):
            self.tokens += data.count(self._marker)
            return data
        return self._feed_events(data)

    def finish(self) -> None:
        """The engine's body ended: raise `error`, a `StreamFailed` if it was not after `[DONE]`.

        A stream with `[DONE]` but no `finish_reason` passes: the engine says it is whole. Output
        with a `finish_reason` but no `[DONE]` does not.
        """
        if not self._over:
            self._fail(unfinished(self._splitter.pending))
        if self.error is not None:
            raise self.error

    def _is_plain(self, data: bytes) -> bool:
        """Whether a read is whole events, and none that needs a look.

        Cheap scans only: this runs for every token of every stream. `[DONE]` is no JSON object.
        """
        if (
            self._over
            or not data.startswith(b"data: {")
            or not data.endswith(b"\n\n")
            or b"\r" in data
        ):
            return False
        # One event most of the time; else each blank line but the last has the next event after it.
        if data.find(b"\n") != len(data) - 2 and (
            data.count(b"\n\ndata: {") != data.count(b"\n\n") - 1
        ):
            return False
        return b'"error"' not in data and not _counts_tokens(data) and len(data) <= self._max_held

    def _feed_events(self, data: bytes) -> bytes:
        if self._over:
            return b""
        try:
            self._take(data)
        except ResponseTooLarge as error:
            self._fail(error)
            if not self.first_token or not self._held:
                raise
        if not self.first_token:
            return b""
        ready = b"".join(self._held)
        self._held.clear()
        return ready

    def _take(self, data: bytes) -> None:
        for event in self._splitter.feed(data):
            self._check_size(len(event))
            if self._look_at(event):
                self._held.append(event)
                self._held_bytes += len(event)
            if self._over:
                return
            if self.first_token:
                self._held_bytes = 0
        self._check_size(self._splitter.pending)

    def _check_size(self, size: int) -> None:
        if self._held_bytes + size > self._max_held:
            raise too_large(self._max_held)

    def _look_at(self, event: bytes) -> bool:
        """Note what an event means; whether it is for the client."""
        data = event_data(event)
        if data is None:
            return True
        if data.strip() == DONE:
            if not self.first_token:
                self._fail(empty())
                return False
            self.done = self._over = True
            return True
        if not self.first_token:
            return self._look_for_first_token(event, data)
        return self._look_at_later(event, data)

    def _look_for_first_token(self, event: bytes, data: bytes) -> bool:
        try:
            chunk = parse_chunk(data)
        except StreamFailed as error:
            self._fail(error)
            return False
        if reported := find_error(chunk, data):
            self._fail(reported)
            return False
        if carries_token(self._route, chunk):
            self.first_token = True
            self._marker = next((m for m in _CHOICES if m in event), self._marker)
            self.tokens = event.count(self._marker)
        return self._note_usage(chunk)

    def _look_at_later(self, event: bytes, data: bytes) -> bool:
        if b'"error"' in data or _counts_tokens(data):
            try:
                chunk = parse_chunk(data)
            except StreamFailed:
                chunk = {}
            if reported := find_error(chunk, data):
                self._fail(reported)
                return False
            if is_usage_only(chunk):
                return self._note_usage(chunk)
            self._note_usage(chunk)
        self.tokens += event.count(self._marker)
        return True

    def _fail(self, error: StreamFailed | ResponseTooLarge) -> None:
        self.error = error
        self._over = True

    def _note_usage(self, chunk: Chunk) -> bool:
        """Keep the count; whether the event that carries it is for the client."""
        self.usage = read_usage(chunk) or self.usage
        return not (self._strip_usage and is_usage_only(chunk))


def _counts_tokens(data: bytes) -> bool:
    """Whether there is a `usage` that says something: engines put a null one in every event."""
    return b'"usage"' in data and data.count(b'"usage"') != data.count(b'"usage":null')
