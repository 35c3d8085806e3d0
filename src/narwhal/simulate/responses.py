"""HTTP responses as a client reads them, strictly: what is odd about one is an error here."""

from __future__ import annotations

import attrs

FIRST_FINAL = 200


class Unreadable(Exception):
    """A server said what no HTTP/1.1 response begins with or contains."""


@attrs.define(eq=False)
class Response:
    """One response, as far as it came."""

    status: int
    headers: dict[str, str]
    body: bytearray = attrs.field(factory=bytearray, repr=False)
    complete: bool = False

    @property
    def is_stream(self) -> bool:
        """Whether it is a stream of events."""
        return self.headers.get("content-type", "").startswith("text/event-stream")


class ResponseParser:
    """The responses on one connection: interim ones skipped, bodies by length or in chunks."""

    def __init__(self) -> None:
        self.responses: list[Response] = []
        self._buffer = bytearray()
        self._left = 0
        self._read = self._head

    @property
    def answered(self) -> int:
        """Complete responses."""
        return sum(response.complete for response in self.responses)

    def feed(self, data: bytes) -> None:
        """Take what was read; raises `Unreadable`."""
        self._buffer += data
        while self._read():
            pass

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        status, *lines = self._buffer[:end].decode().split("\r\n")
        del self._buffer[: end + 4]
        if not status.startswith("HTTP/1.1 "):
            raise Unreadable(f"a response begins with {status!r}")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        code = int(status.split(" ")[1])
        if code < FIRST_FINAL:
            return True
        self.responses.append(Response(code, headers))
        if headers.get("transfer-encoding") == "chunked":
            self._read = self._size
            return True
        if "content-length" not in headers:
            raise Unreadable("a response says nothing of its length")
        self._left = int(headers["content-length"])
        self._read = self._whole
        return True

    def _whole(self) -> bool:
        self._take()
        if not self._left:
            self._complete()
        return not self._left

    def _size(self) -> bool:
        line = self._line()
        if line is None:
            return False
        self._left = int(line, 16)
        self._read = self._chunk if self._left else self._trailer
        return True

    def _chunk(self) -> bool:
        self._take()
        if self._left:
            return False
        line = self._line()
        if line is None:
            return False
        if line:
            raise Unreadable(f"a chunk is followed by {line!r}")
        self._read = self._size
        return True

    def _trailer(self) -> bool:
        line = self._line()
        if line is None:
            return False
        if line:
            raise Unreadable(f"a trailer: {line!r}")
        self._complete()
        return True

    def _take(self) -> None:
        take = min(self._left, len(self._buffer))
        self.responses[-1].body += self._buffer[:take]
        del self._buffer[:take]
        self._left -= take

    def _complete(self) -> None:
        self.responses[-1].complete = True
        self._read = self._head
