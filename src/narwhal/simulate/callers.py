"""Requests from within the application, with scopes and habits of their own."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs
import trio

from narwhal.model import RequestFailed
from narwhal.simulate.asks import draw_body
from narwhal.simulate.plan import rng_for

if TYPE_CHECKING:
    import random

    from narwhal.router import Router
    from narwhal.simulate.plan import Plan
    from narwhal.simulate.trace import Trace

HABITS = ("patient", "patient", "slow", "hasty", "leaves", "raises", "twice", "wrong")
_ENOUGH = 10
_FOR_EVER = 1e9


class Mine(Exception):
    """What a caller's own block raises."""


@attrs.define(eq=False)
class Caller:
    """One request of the application's own, and what became of it."""

    name: str
    at: float
    habit: str
    stream: bool
    ask: dict[str, Any]
    patience: float
    text: str = ""
    leg: str | None = None
    """The id of the leg whose words it was given."""
    legs: int = 0
    """How many legs' words it was given."""
    complete: bool = False
    failed: RequestFailed | None = None
    begun: int = 0
    """Requests that were handed to the router."""

    async def call(self, router: Router, trace: Trace) -> None:
        """Wait for the moment, and ask."""
        await trio.sleep(self.at)
        trace.add("calls", caller=self.name, habit=self.habit)
        try:
            with trio.move_on_after(self.patience if self.habit == "hasty" else _FOR_EVER):
                await (self._stream(router) if self.stream else self._whole(router))
        except RequestFailed as failed:
            self.failed = failed
        except Mine:
            pass
        trace.add("returns", caller=self.name, complete=self.complete, characters=len(self.text))

    async def _whole(self, router: Router) -> None:
        self.begun += 1
        self._take(await router.complete(self.ask))
        self.complete = True

    async def _stream(self, router: Router) -> None:
        self.begun += 1
        async with router.stream(self.ask) as events:
            if self.habit == "twice":
                await self._another(router)
            async for event in events:
                self._take(event)
                if self.habit == "slow":
                    await trio.sleep(0.02)
                if self.habit == "leaves" and len(self.text) > _ENOUGH:
                    return
                if self.habit == "raises" and len(self.text) > _ENOUGH:
                    raise Mine
        self.complete = True

    async def _another(self, router: Router) -> None:
        """A second stream while the first is open, and left before it is at its end."""
        self.begun += 1
        async with router.stream(self.ask) as events:
            with suppress(RequestFailed, StopAsyncIteration):
                await anext(aiter(events))

    def _take(self, event: dict[str, Any]) -> None:
        if event["id"] != self.leg:
            self.leg = event["id"]
            self.legs += 1
        for choice in event["choices"]:
            self.text += text_of_choice(choice)


def text_of_choice(choice: dict[str, Any]) -> str:
    """The text of a choice, of an answer or of an event, on either route."""
    said = choice if "text" in choice else choice.get("delta") or choice.get("message") or {}
    return said.get("text") or said.get("content") or ""


def draw_callers(plan: Plan) -> list[Caller]:
    """Everybody who calls."""
    rng = rng_for(plan.seed, "callers")
    return [_draw(rng, f"own{n}", plan) for n in range(plan.callers)]


def _draw(rng: random.Random, name: str, plan: Plan) -> Caller:
    ask = draw_body(rng, plan.config.model, chat=rng.random() < 0.5)
    habit = rng.choice(HABITS)
    if habit == "wrong":
        ask["n"] = 3
    return Caller(
        name=name,
        at=rng.uniform(0, plan.span),
        habit=habit,
        stream=rng.random() < 0.7,
        ask=ask,
        patience=rng.choice((0.0, 0.01, 0.3, 2.0)),
    )
