"""What a fleet can do, by the model of time: the yardstick of offered load."""

from __future__ import annotations

from math import fsum
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.emulator import TimeModel
    from narwhal.simulate.overload.demand import Demand


@attrs.frozen(kw_only=True)
class Capacity:
    """Requests per second at which a phase is fully used.

    Prefill: `engines / mean(prefill seconds)`. Nothing else is done meanwhile, so above this rate
    some requests are not served, whoever is let in.

    Decode: `engines * seats / (mean(answer tokens) * tpot_s)`, by Little's law: an answer of n
    tokens is n steps, and `seats` is the greatest number of requests with which a step takes no
    longer than the TPOT target. Their context is the mean over the tokens of all answers, because
    long answers are resident for longer.
    """

    prefill_s: float
    """Mean seconds of a prefill that has the engine to itself."""
    prefill_rate: float
    seats: int
    """Requests on one decode engine at the TPOT target."""
    context_tokens: float
    """Mean context of a request that decodes."""
    decode_rate: float
    tokens: float
    """Prompt and answer tokens of a request, on average."""

    @property
    def rate(self) -> float:
        """Requests per second of the scarcer phase."""
        return min(self.prefill_rate, self.decode_rate)

    @property
    def bottleneck(self) -> str:
        """Which phase that is: `prefill` or `decode`."""
        return "prefill" if self.prefill_rate <= self.decode_rate else "decode"


def capacity_of(
    demand: Sequence[Demand], time: TimeModel, *, prefill: int, decode: int, tpot_s: float
) -> Capacity:
    """The capacity of so many engines for just these requests, in these proportions.

    Raises `ValueError` if one request alone takes a decode engine longer than the target.
    """
    count = len(demand)
    prefill_s = fsum(time.prefill_seconds(each.prompt) for each in demand) / count
    steps = sum(each.answer for each in demand)
    held = fsum(each.answer * (each.prompt + each.answer / 2) for each in demand)
    context = held / steps
    t0, tr, tk = time.decode
    seats = int((tpot_s - t0) / (tr + tk * context))
    if seats < 1:
        raise ValueError(f"no request decodes within {tpot_s:g} s a token")
    return Capacity(
        prefill_s=prefill_s,
        prefill_rate=prefill / prefill_s,
        seats=seats,
        context_tokens=context,
        decode_rate=decode * seats / (steps / count * tpot_s),
        tokens=sum(each.prompt + each.answer for each in demand) / count,
    )
