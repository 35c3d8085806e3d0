"""Reading one HTTP/1.1 response, without I/O: bytes in, head and body out.

For servers that are trusted to mean well: llhttp parses, and what it cannot make sense of is an
error, never a guess. A body must say where it ends, by length or chunks; one that ends with the
connection cannot be told from one that was cut.
"""

from __future__ import annotations

from typing import Any, NoReturn

import httptools

from narwhal.model import EngineProtocolError

FRAMING = frozenset({b"content-length", b"transfer-encoding"})
BODILESS_STATUSES = frozenset({204, 304})


class ResponseReader:
    """One response to one request.

    `head_complete`, `complete` and `reusable` only ever go from false to true, except that
    bytes after the end of the message, if not only line ends, take `reusable` back. Where the
    input is cut makes no difference.
    """

    __slots__ = (
        "_head_bytes",
        "_head_only",
        "_max_head_bytes",
        "_parser",
        "_problem",
        "body",
        "complete",
        "head_complete",
        "headers",
        "on_body",
        "reusable",
        "status",
    )

    def __init__(self, *, max_head_bytes: int, head_only: bool = False) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.head_complete = False
        self.body: list[bytes] = []
        self.complete = False
        self.reusable = False
        """Whether the connection may carry another exchange."""
        # What a server sends after the head of an answer to HEAD is no body.
        self.on_body = _drop if head_only else self.body.append
        self._head_bytes = 0
        self._head_only = head_only
        self._max_head_bytes = max_head_bytes
        self._problem: str | None = None
        self._parser: Any = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Take what was received; `EngineProtocolError` if it is not the response expected."""
        room = len(data) if self.head_complete else self._max_head_bytes - self._head_bytes
        if len(data) > room:
            # The head has to end within its bound, whatever else the same read brought.
            self.feed(data[:room])
            if not self.head_complete:
                self._refuse(f"its head is larger than {self._max_head_bytes} bytes")
            data = data[room:]
        if self.complete:
            if data.strip(b"\r\n"):
                self.reusable = False
            return
        if not self.head_complete:
            self._head_bytes += len(data)
        self._parse(data)
        if self._problem is not None:
            self._refuse(self._problem)
        if self.complete:
            self.close()

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._problem = "it switched protocols"
        except httptools.HttpParserError as error:
            if not self.complete:  # otherwise it is what follows the message that is no response
                self._problem = self._problem or str(error)

    def _refuse(self, problem: str) -> NoReturn:
        self.reusable = False
        raise EngineProtocolError(f"not a usable HTTP/1.1 response: {problem}")

    def close(self) -> None:
        """Take no more: the parser refers back here, and memory need not wait for a collector."""
        self._parser = None

    def take(self) -> bytes:
        """Return the body bytes parsed and not taken yet."""
        body = self.body
        data = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
        return data

    # What the parser calls

    def on_message_begin(self) -> None:
        """Start of a message: one that follows an interim response, or one too many."""
        if self.complete:
            self.reusable = False
            raise EngineProtocolError("bytes after the end")  # only stops the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header, or drop a trailer."""
        if not self.head_complete:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Look at the head; interim responses (1xx) are skipped."""
        if self.complete:
            return
        status = self._parser.get_status_code()
        if status < 200:  # noqa: PLR2004 - where final statuses begin
            self.headers.clear()
            return
        self.status = status
        self.head_complete = True
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings and (len(codings) > 1 or codings[0].lower() != b"chunked"):
            # The parser would take such a body up to the end of the connection, or pass it on
            # as it is coded.
            self._problem = "its body has another transfer coding than chunks"
        elif self._head_only:
            self.complete = True
        elif not self._parser.should_keep_alive() and not self._framed():
            self._problem = "its body has neither a length nor chunks"

    def on_message_complete(self) -> None:
        """Note the end of the message; only in here does the parser know about keep-alive."""
        if self.head_complete and not self.complete and self._problem is None:
            self.complete = True
            self.reusable = self._parser.should_keep_alive()

    def _framed(self) -> bool:
        return self.status in BODILESS_STATUSES or any(n in FRAMING for n, _ in self.headers)


def _drop(data: bytes) -> None:
    """Leave `data` where it is."""
