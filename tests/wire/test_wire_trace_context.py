"""Trace context of clients: what is sent on, and that nothing in it can do harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from narwhal.wire.trace_context import MOST_STATE, TraceContext, make_context, read_context

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def read(parent: str, *states: str) -> TraceContext | None:
    headers = [(b"host", b"x"), (b"traceparent", parent.encode("latin-1"))]
    return read_context(headers + [(b"tracestate", each.encode("latin-1")) for each in states])


def test_what_a_context_says() -> None:
    context = read(PARENT, "a=1")
    assert context == TraceContext(PARENT, "a=1")
    assert (context.trace_id, context.span_id) == (int(TRACE, 16), int(SPAN, 16))
    assert context.sampled
    assert context.head == f"traceparent: {PARENT}\r\ntracestate: a=1\r\n".encode()
    plain = read(f"00-{TRACE}-{SPAN}-00")
    assert plain is not None
    assert not plain.sampled
    assert plain.head.count(b"\r\n") == 1


@pytest.mark.parametrize(
    "parent",
    [
        "",
        PARENT.upper(),
        PARENT[:-1],
        f"{PARENT}-00",
        f"{PARENT}\r\nx: y",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-0x",
        f" {PARENT}",
    ],
)
def test_a_parent_that_is_none_takes_its_state_with_it(parent: str) -> None:
    assert read(parent, "a=1") is None


def test_a_later_version_s_own_fields_are_the_first_four() -> None:
    assert read(f"01-{TRACE}-{SPAN}-03") == TraceContext(f"01-{TRACE}-{SPAN}-03")


def test_two_parents_are_none() -> None:
    assert read_context([(b"traceparent", PARENT.encode())] * 2) is None
    assert read_context([]) is None


def test_states_are_joined_in_order_and_cut_at_a_member() -> None:
    assert read(PARENT, "a=1", "b=2").tracestate == "a=1,b=2"  # type: ignore[union-attr]  # valid
    members = [f"m{n}={'x' * 100}" for n in range(9)]
    state = read(PARENT, ",".join(members)).tracestate  # type: ignore[union-attr]  # valid
    assert state == ",".join(members[:4])
    assert len(state) <= MOST_STATE
    many = read(PARENT, "a=1" + "," * 100_000).tracestate  # type: ignore[union-attr]  # valid
    assert many == "a=1" + "," * (MOST_STATE - 3)


@pytest.mark.parametrize("state", ["", "  ", "a=\r\nx: y", "a=\x00", "caf\xe9=1", "x" * 600])
def test_a_state_that_cannot_be_sent_on_is_dropped(state: str) -> None:
    assert read(PARENT, state) == TraceContext(PARENT)


@given(st.lists(st.binary(max_size=80), max_size=3), st.lists(st.binary(max_size=700), max_size=3))
def test_any_bytes_are_harmless_lines_or_none(parents: list[bytes], states: list[bytes]) -> None:
    headers = [(b"traceparent", each) for each in parents]
    context = read_context([*headers, *((b"tracestate", each) for each in states)])
    assert context is None or context.head.count(b"\n") == 1 + (context.tracestate is not None)


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_what_is_made_can_be_read(trace_id: int, span_id: int, sampled: bool) -> None:
    made = make_context(trace_id, span_id, sampled=sampled, tracestate="a=1")
    read_back = read(made.traceparent, "a=1")
    assert read_back == made
    assert (made.trace_id, made.span_id, made.sampled) == (trace_id, span_id, sampled)
