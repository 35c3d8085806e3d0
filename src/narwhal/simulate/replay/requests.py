"""What the clients of a replay send: prompts of the right length, and nothing in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import msgspec

if TYPE_CHECKING:
    from narwhal.simulate.replay.arrivals import Arrival

# Below the number of words that an emulated engine knows.
_NUMBERS = 100_000


@attrs.frozen(kw_only=True)
class Request:
    """One arrival, as its client asks for it.

    The prompt comes as token ids: so the router knows its length exactly, as it does where an
    engine counts tokens for it. The first one tells emulated engines how long the answer is, the
    next ones make the prompt a different one than any other.
    """

    arrival: Arrival
    number: int
    """Its place in the trace."""
    cap: int
    """Its `max_tokens`."""

    @property
    def prompt(self) -> int:
        """Tokens of its prompt."""
        return self.arrival.prompt

    @property
    def answer(self) -> int:
        """Tokens that it is answered with."""
        return self.arrival.output

    def body(self, model: str) -> bytes:
        """The request, a streamed completion."""
        high, low = divmod(self.number, _NUMBERS)
        head = (self.answer, low, high)[: self.prompt]
        ids = ",".join(map(str, head)) + ",9" * (self.prompt - len(head))
        name = msgspec.json.encode(model).decode()
        return (
            f'{{"model":{name},"max_tokens":{self.cap},"stream":true,"prompt":[{ids}]}}'
        ).encode()


def cap_of(arrival: Arrival, generosity: float) -> int:
    """What the client of `arrival` asks for as `max_tokens`."""
    if arrival.cap is not None:
        return max(arrival.cap, arrival.output)
    return max(arrival.output, round(arrival.output * generosity))
