"""Cutting bytes into events: any pieces, any line ends, nothing lost, linear time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_streams import cut

from narwhal.wire.sse import EventSplitter, event_data


def split(*pieces: bytes) -> list[bytes]:
    splitter = EventSplitter()
    return [event for piece in pieces for event in splitter.feed(piece)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_line_ends(end: bytes) -> None:
    first = b"data: a" + end + b"data: b" + end + end
    second = b": comment" + end + end
    tail = b"data: c" + end
    splitter = EventSplitter()
    assert splitter.feed(first + second + tail) == [first, second]
    assert splitter.pending == len(tail)


@pytest.mark.parametrize(
    ("text", "events"),
    [
        (b"a\r\n\nb", [b"a\r\n\n"]),
        (b"a\n\r\nb", [b"a\n\r", b"\n"]),
        (b"a\r\r\nb", [b"a\r\r", b"\n"]),
        (b"a\r\n\rb", [b"a\r\n\r"]),
        (b"a\r\n\r\n\r\nb", [b"a\r\n\r\n", b"\r\n"]),
        (b"a\n\n\n\nb", [b"a\n\n", b"\n", b"\n"]),
        (b"\na\n\n", [b"\n", b"a\n\n"]),
        (b"\r\na\n\n", [b"\r\n", b"a\n\n"]),
        (b"\ra\n\n", [b"\r", b"a\n\n"]),
        (b"a\rb\nc\r\nd\n\n", [b"a\rb\nc\r\nd\n\n"]),
    ],
)
def test_mixed_line_ends(text: bytes, events: list[bytes]) -> None:
    assert split(text) == events
    assert split(*(text[at : at + 1] for at in range(len(text)))) == events


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_not_kept_waiting_for_the_next(end: bytes) -> None:
    text = b"data: a" + end + end
    assert split(*(text[at : at + 1] for at in range(len(text)))) == [text]


LINES = st.lists(
    st.sampled_from([b"data: x", b"data:", b": c", b"id: 1", b"", b"d\xc3\xa9", b"\n"]), max_size=8
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@settings(deadline=None)
@given(st.data())
def test_any_pieces_give_the_same_events(data: st.DataObject) -> None:
    text = b"".join(line + data.draw(ENDS) for line in data.draw(LINES))
    whole = split(text)
    splitter = EventSplitter()
    events = []
    for piece in data.draw(cut(text)):
        events += splitter.feed(piece)
        assert sum(map(len, events)) + splitter.pending <= len(text)
    assert events == whole
    assert b"".join(events) == text[: len(text) - splitter.pending]


@settings(deadline=None)
@given(st.lists(st.sampled_from([b"data: x\n\n", b": c\n\n", b"data: a\ndata: b\n\n"])))
def test_events_of_one_kind_of_line_end(events: list[bytes]) -> None:
    for end in (b"\n", b"\r\n", b"\r"):
        expected = [event.replace(b"\n", end) for event in events]
        assert split(b"".join(expected)) == expected


@settings(deadline=None)
@given(st.text("a\r\n:", max_size=12).map(str.encode))
def test_an_event_is_whatever_a_blank_line_ends(text: bytes) -> None:
    """Against the definition: a reader of lines sees the same events in what comes out."""

    def events_of(stream: bytes) -> list[bytes]:
        lines = re.split(rb"\r\n|\r|\n", stream)[:-1]
        found: list[list[bytes]] = [[]]
        for line in lines:
            found[-1].append(line) if line else found.append([])
        return [b"\n".join(lines) for lines in found[:-1] if lines]

    splitter = EventSplitter()
    events = splitter.feed(text)
    pending = text[len(text) - splitter.pending :]
    per_event = [inner for event in events for inner in events_of(event)]
    assert per_event == events_of(b"".join(events))
    # What is held is no complete event, but for the CR that may be half of a line end.
    assert not events_of(pending.removesuffix(b"\r"))


def test_a_long_event_is_not_scanned_again_for_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each search starts where the last one stopped: the work is counted, not timed."""
    for end in (b"\n", b"\r\n"):
        splitter = EventSplitter()
        splitter.feed(b":" + end + end)
        body = b"data: " + b"x" * (1 << 20)
        for at in range(0, len(body), 4096):
            assert splitter.feed(body[at : at + 4096]) == []
            assert splitter._scanned == splitter.pending
        assert splitter.feed(end) == []
        assert splitter.feed(end) == [body + end + end]
        assert splitter.pending == 0


@pytest.mark.parametrize("step", [65536, 1 << 23])
def test_eight_mebibytes(step: int) -> None:
    text = b"data: " + bytes(range(32, 128)) * 87382 + b"\n\n"
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    assert split(b"data: a\n\n", *pieces, b"data: b\n\n") == [
        b"data: a\n\n",
        text,
        b"data: b\n\n",
    ]


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: x\n\n", b"x"),
        (b"data:x\n\n", b"x"),
        (b"data:  x \n\n", b" x "),
        (b"data: x\r\n\r\n", b"x"),
        (b"data: x\r\r", b"x"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data: a\rdata: b\n\n", b"a\nb"),
        (b"event: e\ndata: a\nid: 3\n\n", b"a"),
        (b"data\n\n", b""),
        (b"data:\n\n", b""),
        (b"data: \n\n", b""),
        (b"\xef\xbb\xbfdata: x\n\n", b"x"),
        (b": data: x\n\n", None),
        (b"datax: x\n\n", None),
        (b" data: x\n\n", None),
        (b"event: e\n\n", None),
        (b"\n", None),
        (b"\r\n", None),
    ],
)
def test_data(event: bytes, data: bytes | None) -> None:
    assert event_data(event) == data
