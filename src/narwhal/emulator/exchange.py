"""One HTTP exchange with an emulated engine, and the fault that acts on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import trio

from narwhal.emulator.bodies import Refusal
from narwhal.emulator.faults import Early
from narwhal.emulator.link import MAX_BODY_BYTES
from narwhal.emulator.reply import FixedReply
from narwhal.emulator.requests import Directives
from narwhal.emulator.script import run_script
from narwhal.emulator.stats import Seen

if TYPE_CHECKING:
    from collections.abc import Collection

    from narwhal.emulator.engine import EmulatedEngine
    from narwhal.emulator.faults import Fault, FaultBook, FaultPhase
    from narwhal.emulator.link import Inbox, Link


@attrs.define(eq=False, kw_only=True)
class Exchange:
    """One request, as far as it is known, and the way to answer it."""

    method: str
    path: str
    headers: dict[str, str]
    peer: tuple[object, ...] | None
    """The address of the connection's other end."""
    reused: bool
    """Whether its connection has served a request before."""
    link: Link
    inbox: Inbox
    said: Directives = attrs.field(factory=Directives)
    """What its headers ask of the emulator."""
    fault: Fault | None = None

    @property
    def content_type(self) -> str:
        """The request's content type."""
        return self.headers.get("content-type", "")

    def choose_early(self, book: FaultBook, phases: Collection[FaultPhase]) -> None:
        """Choose a fault that acts on the body's reading; the request is one of `phases`."""
        said = self.said.fault
        if said is not None and said.before_body and self._fits(said, phases):
            self.fault = said
        else:
            self.fault = book.take(phases, before_body=True, reused=self.reused)
        if self.fault is not None:
            self.inbox.unread_s = self.fault.unread_s

    def choose(self, book: FaultBook, phase: FaultPhase, in_prompt: Fault | None = None) -> None:
        """Choose a fault, unless one was: the request's own before the engine's."""
        if self.fault is not None:
            return
        for said in (self.said.fault, in_prompt):
            if said is not None and not said.before_body and self._fits(said, (phase,)):
                self.fault = said
                return
        self.fault = book.take((phase,), before_body=False, reused=self.reused)

    def _fits(self, fault: Fault, phases: Collection[FaultPhase]) -> bool:
        return fault.is_for(phases) and (self.reused or not fault.on_reuse)


async def read_all(engine: EmulatedEngine, exchange: Exchange) -> bytes | None:
    """The request's body, noted as seen; None if the exchange was ended before or instead."""
    fault = exchange.fault
    if fault is not None and fault.has(Early):
        await run_script(fault, FixedReply(exchange.link, fault, b""), engine.die)
        return None
    raw = await exchange.inbox.body()
    if raw is None:
        too_large = f"The body is larger than {MAX_BODY_BYTES} bytes."
        refusal = Refusal(status=413, error_type="Bad Request", message=too_large)
        await answer_refusal(exchange, refusal)
        return None
    seen = Seen(trio.current_time(), exchange.path, exchange.headers, raw)
    engine.stats.requests.append(seen)
    return raw


async def answer_json(exchange: Exchange, *, status: int, body: dict[str, Any]) -> None:
    """Answer with a JSON object; no fault acts on it."""
    await FixedReply(exchange.link, None, b"").answer(status, msgspec.json.encode(body))


async def answer_refusal(exchange: Exchange, refusal: Refusal) -> None:
    """Answer with an error; no fault acts on it."""
    await FixedReply(exchange.link, None, b"").answer(refusal.status, refusal.body)
