"""Clients that keep to the clock, whatever becomes of those before them: an open loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from narwhal.model import Route
from narwhal.wire import openai

if TYPE_CHECKING:
    from narwhal.model import Outcome
    from narwhal.router import Router
    from narwhal.wire.openai import CompletionRequest


class Asked(Protocol):
    """What a client asks for. All in tokens, counted as engines count them."""

    @property
    def prompt(self) -> int:
        """How long its prompt is."""

    @property
    def answer(self) -> int:
        """What it will be answered with; the end-of-text token counts."""

    @property
    def cap(self) -> int:
        """Its `max_tokens`, at least `answer`."""

    def body(self, model: str) -> bytes:
        """The request as a client would write it, a streamed completion."""


@attrs.define(eq=False)
class Client:
    """One request and what its client saw, by the client's own clock. A `Reply` of the router's."""

    name: str
    """Its `x-request-id`."""
    at: float
    """When it comes; Trio's clock."""
    demand: Asked
    counted: bool = True
    """Whether it comes within the time that is measured."""
    committed: bool = False
    first_at: float | None = None
    """When it had the first token."""
    done_at: float | None = None
    """When it had the last one; None if it did not get so far."""

    async def ask(self, router: Router) -> None:
        """Ask, and read as fast as the answer comes."""
        life = router.open_life(Route.COMPLETIONS, arrival=self.at, client_id=self.name)
        model = router.config.model

        async def read() -> CompletionRequest:
            return openai.parse_request(Route.COMPLETIONS, self.demand.body(model), model=model)

        await life.run(self, read)

    @property
    def first_token_s(self) -> float | None:
        """From its arrival to its first token."""
        return None if self.first_at is None else self.first_at - self.at

    @property
    def tpot_s(self) -> float | None:
        """Mean time between its tokens, once it has them all."""
        if self.first_at is None or self.done_at is None:
            return None
        return (self.done_at - self.first_at) / max(1, self.demand.answer - 1)

    # Its side of the connection

    async def commit(self) -> None:
        """Take the head of a response."""
        self.committed = True

    async def write(self, data: bytes) -> None:  # noqa: ARG002 - what it says does not matter
        """Take the first token, or some later ones."""
        self._got()

    def write_nowait(self, data: bytes) -> bool:  # noqa: ARG002 - as above
        """As `write`: it always has room."""
        self._got()
        return True

    async def flush(self) -> None:
        """Nothing is left to be taken."""

    async def complete(self, data: bytes, *, stream: bool) -> None:  # noqa: ARG002 - a Reply's
        """Take the last token."""
        self._got()
        self.done_at = trio.current_time()

    async def fail(self, outcome: Outcome, error: bytes) -> None:
        """Take an error; the journal says which."""

    def abort(self) -> None:
        """Be cut off."""

    def _got(self) -> None:
        self.committed = True
        if self.first_at is None:
            self.first_at = trio.current_time()
