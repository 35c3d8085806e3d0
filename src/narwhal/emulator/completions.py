"""The two completion routes: from a body to an answer, counted and cleaned up after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from narwhal.emulator.bodies import Refusal
from narwhal.emulator.checks import check
from narwhal.emulator.chunks import DONE
from narwhal.emulator.exchange import answer_refusal, read_all
from narwhal.emulator.faults import FaultPhase
from narwhal.emulator.plan import Style
from narwhal.emulator.reply import SSE_TYPE, FixedReply, StreamReply, WholeReply
from narwhal.emulator.requests import Rejected, leg_of, prompt_directives, read_body, texts_of
from narwhal.emulator.script import run_script
from narwhal.emulator.stats import Outcome
from narwhal.emulator.work import Work

if TYPE_CHECKING:
    from narwhal.emulator.bodies import ChatBody, CompletionBody
    from narwhal.emulator.engine import EmulatedEngine
    from narwhal.emulator.exchange import Exchange
    from narwhal.emulator.reply import Reply
    from narwhal.emulator.stats import Record
    from narwhal.model import Route


async def complete(engine: EmulatedEngine, route: Route, exchange: Exchange) -> None:
    """Answer a completion request.

    A request whose body has the wrong schema is none of the three legs, and not counted as one.
    Cancelling aborts the engine's work on it at once.
    """
    raw = await read_all(engine, exchange)
    if raw is None:
        return
    body = read_body(route, raw, exchange.content_type)
    if isinstance(body, Refusal):
        await answer_refusal(exchange, body)
        return
    leg = leg_of(body.kv_transfer_params, engine.settings)
    name = exchange.headers.get("x-request-id", "")
    record = engine.stats.leg(leg, engine=engine.iid, request_id=name, peer=exchange.peer)
    with record:
        if engine.stats.records is not None:
            exchange.link.record = record
        await _run(engine, exchange, body, record)


async def _run(
    engine: EmulatedEngine,
    exchange: Exchange,
    body: CompletionBody | ChatBody,
    record: Record,
) -> None:
    said = prompt_directives(texts_of(body))
    if isinstance(said, Refusal):
        await _refuse(exchange, record, said)
        return
    exchange.choose(engine.faults, FaultPhase.of(record.leg), said.fault)
    record.fault = exchange.fault
    record.names = (body.kv_transfer_params or {}).get("remote_request_id")
    checked = check(body, engine.settings, exchange.said.style or said.style or Style())
    if isinstance(checked, Rejected):
        if checked.descriptor is not None:
            engine.fleet.release(engine.connector, checked.descriptor, trio.current_time())
        late = checked.refusal.late and body.stream
        await (_refuse_late if late else _refuse)(exchange, record, checked.refusal)
        return
    work = Work(engine, checked, record.request_id or engine.new_id(), exchange.fault)
    record.pull = work.pull
    try:
        reply: Reply
        if checked.stream:
            reply = StreamReply(exchange.link, exchange.fault, work)
        else:
            reply = WholeReply(exchange.link, exchange.fault, work)
        await run_script(exchange.fault, reply, engine.die)
        # No checkpoint since the last byte: a client that has it all cannot make this an abort.
        record.outcome = Outcome.DONE if reply.complete else Outcome.FAILED
    finally:
        record.handle = work.handle
        work.close()


async def _refuse_late(exchange: Exchange, record: Record, refusal: Refusal) -> None:
    content = refusal.event + DONE
    await FixedReply(exchange.link, None, content, content_type=SSE_TYPE).rest()
    record.outcome = Outcome.FAILED


async def _refuse(exchange: Exchange, record: Record, refusal: Refusal) -> None:
    await answer_refusal(exchange, refusal)
    record.outcome = Outcome.FAILED
