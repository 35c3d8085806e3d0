"""Callers inside the application, with scopes and habits of their own."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import attrs
import trio
from chaos_plan import Plan

from narwhal.model import RequestFailed
from narwhal.router import Router

HABITS = ("patient", "patient", "slow", "hasty", "leaves", "raises", "twice", "wrong")


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
    complete: bool = False
    failed: RequestFailed | None = None
    begun: int = 0
    """Requests that were handed to the router."""

    async def call(self, router: Router) -> None:
        await trio.sleep(self.at)
        try:
            with trio.move_on_after(self.patience if self.habit == "hasty" else 1e6):
                await (self._stream(router) if self.stream else self._whole(router))
        except RequestFailed as failed:
            self.failed = failed
        except Mine:
            assert self.habit == "raises"

    async def _whole(self, router: Router) -> None:
        self.begun += 1
        answer = await router.complete(self.ask)
        choice = answer["choices"][0]
        self.text = choice["message"]["content"] if "messages" in self.ask else choice["text"]
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
                if self.habit == "leaves" and len(self.text) > 10:
                    return
                if self.habit == "raises" and len(self.text) > 10:
                    raise Mine
        self.complete = True

    async def _another(self, router: Router) -> None:
        """A second stream while the first is open, and left before it is at its end."""
        self.begun += 1
        async with router.stream(self.ask | {"user": None}) as events:
            with suppress(RequestFailed):
                await anext(aiter(events))

    def _take(self, event: dict[str, Any]) -> None:
        for choice in event.get("choices", ()):
            delta = choice["text"] if "text" in choice else choice.get("delta", {}).get("content")
            self.text += delta or ""


def draw_callers(plan: Plan) -> list[Caller]:
    rng = random.Random(f"callers {plan.seed}")
    return [_draw(rng, f"own{n}", plan) for n in range(plan.callers)]


def _draw(rng: random.Random, name: str, plan: Plan) -> Caller:
    ask: dict[str, Any] = {"model": "m", "user": name, "max_tokens": rng.choice((1, 5, 30))}
    if rng.random() < 0.5:
        ask["prompt"] = "hello"
    else:
        ask["messages"] = [{"role": "user", "content": "hi"}]
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
