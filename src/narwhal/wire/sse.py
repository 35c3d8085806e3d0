"""Server-sent events as bytes: where one ends and the next begins, and what data it carries.

Lines end in LF, CRLF or CR, in any mixture, and an empty line ends an event. Nothing is decoded
and nothing is lost: the events that come out, put together, are the bytes that went in.
"""

from __future__ import annotations

import re

_LF, _CR = 10, 13
_BOM = b"\xef\xbb\xbf"

# The end of a line and the empty line after it. After CRLF a CR alone waits for what follows, as
# it may be half of the next CRLF; in streams that end lines otherwise an event is never kept
# waiting for its successor.
_BLANK_LINE = re.compile(rb"\r\n(?:\r\n|\n|\r(?=[^\n]))|(?<!\r)\n[\r\n]|\r\r")
_LINE_END = re.compile(rb"\r\n|\r|\n")


class EventSplitter:
    """Cuts a stream of bytes into events, whatever the pieces it arrives in.

    The same bytes give the same events however they are cut. The time is linear in the bytes:
    what was looked at is not looked at again, however often an event is continued.
    """

    __slots__ = ("_buffer", "_has_cr", "_scanned")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0  # bytes of the buffer known to hold no whole event
        self._has_cr = False

    @property
    def pending(self) -> int:
        """Bytes held of an event that is not complete."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes; return the events they complete, each with its blank line.

        A blank line that ends nothing is an event of its own, without data.
        """
        if not self._has_cr and b"\r" in data:
            self._has_cr = True
        text: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            text = self._buffer
        events = []
        start = 0
        while (end := self._find_end(text, start)) > 0:
            events.append(bytes(text[start:end]))
            start = end
            self._scanned = 0
        if text is not self._buffer:
            self._buffer += data[start:]
        elif start:
            del self._buffer[:start]
        self._scanned = len(self._buffer)
        return events

    def _find_end(self, text: bytes | bytearray, start: int) -> int:
        """Where the event that begins at `start` ends; 0 while that is not known."""
        if start == len(text):
            return 0
        if text[start] == _LF:
            return start + 1
        if not self._has_cr:
            found = text.find(b"\n\n", start + max(0, self._scanned - 1))
            return 0 if found < 0 else found + 2
        if text[start] == _CR:
            if start + 1 == len(text):
                return 0
            return start + (2 if text[start + 1] == _LF else 1)
        match = _BLANK_LINE.search(text, start + max(0, self._scanned - 3))
        return match.end() if match else 0


def event_data(event: bytes) -> bytes | None:
    """The data of an event: its `data` lines joined by LF; `None` for a comment or an empty one."""
    event = event.removeprefix(_BOM)
    if event.startswith(b"data:") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        return event[6:-2] if event.startswith(b"data: ") else event[5:-2]
    lines = []
    for line in _LINE_END.split(event):
        name, _, value = line.partition(b":")
        if name == b"data":
            lines.append(value.removeprefix(b" "))
    return b"\n".join(lines) if lines else None
