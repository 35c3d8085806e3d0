from __future__ import annotations

import pytest

from narwhal.emulator import Fault, FaultPhase, parse_fault
from narwhal.emulator import faults as f
from narwhal.emulator.faults import FaultBook


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("rst", Fault([f.Rst()])),
        ("decode:tokens(3);rst*2", Fault([f.Tokens(3), f.Rst()], FaultPhase.DECODE, count=2)),
        ("drop(3)", Fault([f.Tokens(3), f.Rst()])),
        ("prefill:stall(2)", Fault([f.Tokens(2), f.Hang()], FaultPhase.PREFILL)),
        ("hdr;wait(0.2);rst", Fault([f.Hdr(), f.Wait(0.2), f.Rst()])),
        ("status(503,null,2)", Fault([f.Status(503, None, 2)])),
        (
            'status(400,{"error":{"message":"too, long)"}})',
            Fault([f.Status(400, {"error": {"message": "too, long)"}})]),
        ),
        ('send("data: x\\n\\n");cut', Fault([f.Send(b"data: x\n\n"), f.Cut()])),
        ("header(content-type,text/plain)", Fault([f.Header("content-type", "text/plain")])),
        ("kv(remote_request_id)", Fault([f.Kv("remote_request_id")])),
        ("kv(remote_block_ids,[[1]])", Fault([f.Kv("remote_block_ids", [[1]])])),
        ("split(9);nodone;nofinish", Fault([f.Split(9), f.NoDone(), f.NoFinish()])),
        ('tail("more");late(2)', Fault([f.Tail(b"more"), f.Late(2)])),
        ("health:status(500)*1", Fault([f.Status(500)], FaultPhase.HEALTH, count=1)),
        ("early;status(413)", Fault([f.Early(), f.Status(413)])),
    ],
)
def test_the_text_form(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no action is called ''"),
        ("explode", "no action is called 'explode'"),
        ("lunch:rst", "no phase is called 'lunch'"),
        ("rst*0", "at least 1"),
        ("rst;wait(1)", "has to be the last"),
        ("wait", "does not take 0 arguments"),
        ("wait(-1)", "number from 0"),
        ("tokens(many)", "number from 0"),
        ("wait(1", "is missing before"),
        ("kv(a,)", "argument is missing"),
        ("rst rst", "';' is missing"),
        ("early;wait(1)", "has to end the answer"),
        ("kv(a," + "[" * 100_000 + "]" * 100_000 + ")", "nested too deeply"),
    ],
)
def test_what_cannot_be_read_is_explained(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match="fault") as caught:
        parse_fault(text)
    assert complaint in str(caught.value)
    assert repr(text) in str(caught.value)


def take(book: FaultBook, phase: FaultPhase, *, reused: bool = False) -> Fault | None:
    return book.take((phase,), before_body=False, reused=reused)


def test_a_fault_acts_as_often_as_it_says() -> None:
    book = FaultBook()
    twice = parse_fault("decode:rst*2")
    book.set([twice])
    assert take(book, FaultPhase.PREFILL) is None
    assert [take(book, FaultPhase.DECODE) for _ in range(3)] == [twice, twice, None]
    assert book.pending == []


def test_any_is_for_the_three_legs_and_nothing_else() -> None:
    book = FaultBook()
    book.set([parse_fault("hang")])
    for phase in (FaultPhase.PREFILL, FaultPhase.DECODE, FaultPhase.WHOLE):
        assert take(book, phase)
    for phase in (FaultPhase.HEALTH, FaultPhase.TOKENIZE, FaultPhase.METRICS):
        assert take(book, phase) is None


def test_a_fault_for_reused_connections_waits_for_one() -> None:
    book = FaultBook()
    book.set([parse_fault("onreuse;rst*1")])
    assert take(book, FaultPhase.DECODE) is None
    assert take(book, FaultPhase.DECODE, reused=True)
    assert take(book, FaultPhase.DECODE, reused=True) is None


def test_the_first_that_fits_acts_alone() -> None:
    book = FaultBook()
    first, second = parse_fault("decode:rst*1"), parse_fault("hang")
    book.set([first, second])
    assert [take(book, FaultPhase.DECODE) for _ in range(2)] == [first, second]
