"""The emulator's own routes, for tests and demonstrations: `/emulator/...` on every engine.

`GET stats`, `GET requests`; `POST fault`, `model`, `reset`, `down`, `restart`, each with a JSON
object that may name the engine it is for: `"engine": "e1"`, or `"all"`; without, the engine
that was asked. An engine that is down is restarted through another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import msgspec
import trio

from narwhal.emulator.bodies import Refusal
from narwhal.emulator.exchange import answer_json, answer_refusal
from narwhal.emulator.fault_text import parse_fault

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from narwhal.emulator.engine import EmulatedEngine
    from narwhal.emulator.exchange import Exchange

PREFIX = "/emulator/"
_OK = {"ok": True}


class _Order(msgspec.Struct, forbid_unknown_fields=True):
    """The body of any control request."""

    engine: str | None = None
    fault: str | list[str] | None = None
    prefill: tuple[float, float, float] | None = None
    decode: tuple[float, float, float] | None = None
    handoff: tuple[float, float] | None = None
    lease: float | None = None
    seconds: float | None = None
    restart: bool = False


class Control:
    """Serves the control routes of one engine, for it and its siblings."""

    def __init__(self, engine: EmulatedEngine, siblings: Sequence[EmulatedEngine]) -> None:
        self._engine = engine
        self._siblings = siblings
        self._reads: dict[str, Callable[[EmulatedEngine], dict[str, Any]]] = {
            "stats": engine_state,
            "requests": _requests,
        }
        self._orders: dict[str, Callable[[EmulatedEngine, _Order], None]] = {
            "fault": _set_faults,
            "model": _set_model,
            "reset": _reset,
            "down": _take_down,
            "restart": _restart,
        }

    async def respond(self, exchange: Exchange) -> None:
        """Answer one control request."""
        name = exchange.path.removeprefix(PREFIX)
        if name in self._reads and exchange.method == "GET":
            await answer_json(exchange, status=200, body=self._reads[name](self._engine))
        elif name in self._orders and exchange.method == "POST":
            await self._obey(exchange, self._orders[name])
        else:
            await answer_json(exchange, status=404, body={"detail": "Not Found"})

    async def _obey(
        self, exchange: Exchange, act: Callable[[EmulatedEngine, _Order], None]
    ) -> None:
        raw = await exchange.inbox.body()
        try:
            order = msgspec.json.decode(raw or b"{}", type=_Order)
            targets = self._targets(order.engine)
            if act is not _take_down:
                for engine in targets:
                    act(engine, order)
        except ValueError as error:
            await answer_refusal(exchange, Refusal(message=str(error)))
            return
        await answer_json(exchange, status=200, body=_OK)
        if act is _take_down:  # the answer had to get out first
            for engine in targets:
                act(engine, order)

    def _targets(self, name: str | None) -> list[EmulatedEngine]:
        if name is None:
            return [self._engine]
        targets = [engine for engine in self._siblings if name in ("all", engine.iid)]
        if not targets:
            known = ", ".join(engine.iid for engine in self._siblings)
            raise ValueError(f"engine {name!r} is none of: {known}, all")
        return targets


def engine_state(engine: EmulatedEngine) -> dict[str, Any]:
    """Counters and state of an engine, for JSON."""
    core, now = engine.core, trio.current_time()
    return {
        "iid": engine.iid,
        "engine_id": engine.connector.engine_id,
        **engine.stats.as_dict(),
        "running": core.running,
        "waiting": core.waiting,
        "used_blocks": core.pool.used,
        "staged": len(core.handles),
        "leases": {name: handle.expires - now for name, handle in core.handles.items()},
        "max_uses": max(core.uses.values(), default=0),
        "released": core.released,
        "expired": core.expired,
        "notifications_after_expiry": core.late_notifications,
        "failed_transfers": engine.connector.failed_transfers,
        "faults": [repr(fault) for fault in engine.faults.pending],
    }


def _requests(engine: EmulatedEngine) -> dict[str, Any]:
    seen = [
        {"at": s.at, "path": s.path, "headers": s.headers, "body": s.raw.decode("utf-8", "replace")}
        for s in engine.stats.requests
    ]
    return {"requests": seen}


def _set_faults(engine: EmulatedEngine, order: _Order) -> None:
    texts = [order.fault] if isinstance(order.fault, str) else order.fault or []
    engine.faults.set(parse_fault(text) for text in texts if text)


def _set_model(engine: EmulatedEngine, order: _Order) -> None:
    time = engine.core.time
    if order.prefill is not None:
        time = attrs.evolve(time, prefill=order.prefill)
    if order.decode is not None:
        time = attrs.evolve(time, decode=order.decode)
    if order.handoff is not None:
        time = attrs.evolve(time, handoff=order.handoff)
    engine.set_time(time)
    if order.lease is not None:
        if not order.lease > 0:
            raise ValueError(f"lease: must be positive, not {order.lease!r}")
        engine.core.lease_s = order.lease


def _reset(engine: EmulatedEngine, _order: _Order) -> None:
    engine.stats.reset()
    engine.faults.set(())
    engine.core.reset_counters()


def _take_down(engine: EmulatedEngine, order: _Order) -> None:
    engine.take_down(order.seconds, new_process=order.restart)


def _restart(engine: EmulatedEngine, _order: _Order) -> None:
    engine.restart()
