"""Any bytes in any pieces give the same events, which put together are the bytes again.

Events and their data are what a reader of lines finds by the rules of the HTML standard.
"""

from __future__ import annotations

import re

from fuzz.pieces import cuttings, sizes
from narwhal.wire.sse import EventSplitter, event_data

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


def check(data: bytes) -> None:
    events, pending = _split([data])
    text = b"".join(events)
    assert text == data[: len(data) - pending], "bytes were lost, repeated or moved"
    for event in events:
        assert event.endswith((b"\n", b"\r")), "an event goes on after its blank line"
        # Not alone: a CR at its end could be half of a line end.
        assert _split([event + b"x"]) == ([event], 1), "an event is not one on its own"
    for pieces in cuttings(data):
        assert _split(pieces) == (events, pending), f"events differ for {sizes(pieces)}"
    blocks = [_blocks(event) for event in events]
    assert all(len(found) <= 1 for found in blocks), "an event is several"
    assert [block for found in blocks for block in found] == _blocks(text)
    # What is held is no event yet, but for a CR that may be half of a line end.
    assert not _blocks(data[len(text) :].removesuffix(b"\r")), "an event is held back"
    if _BOM not in data:
        for event, found in zip(events, blocks, strict=True):
            assert event_data(event) == (_data(found[0]) if found else None)


def _split(pieces: list[bytes]) -> tuple[list[bytes], int]:
    splitter = EventSplitter()
    events = []
    fed = came_out = 0
    for piece in pieces:
        found = splitter.feed(piece)
        events += found
        fed += len(piece)
        came_out += sum(map(len, found))
        assert splitter.pending == fed - came_out, "more or less is held than has not come out"
    return events, splitter.pending


def _blocks(text: bytes) -> list[list[bytes]]:
    """The lines between blank lines, those that a blank line ends."""
    blocks: list[list[bytes]] = [[]]
    for line in _LINE_END.split(text)[:-1]:
        if line:
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return blocks[:-1]


def _data(lines: list[bytes]) -> bytes | None:
    """What an event source dispatches of these lines; `None` if they have no data."""
    fields = [line.partition(b":") for line in lines]
    values = [value.removeprefix(b" ") for name, _, value in fields if name == b"data"]
    return b"\n".join(values) if values else None
