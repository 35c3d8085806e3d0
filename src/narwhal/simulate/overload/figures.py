"""What a run comes to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

from narwhal.model import Terminal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from narwhal.config.serving import Slo
    from narwhal.simulate.overload.arms import Arm
    from narwhal.simulate.overload.clients import Client
    from narwhal.telemetry import RequestRow

# Times are sums of floating-point numbers, and targets may be met to the point.
_ROUNDING_S = 1e-9


@attrs.frozen(kw_only=True)
class Figures:
    """One arm at one load. Of the requests that came within the measured time, and of no others."""

    arm: Arm
    load: float
    """Offered rate, as a multiple of capacity."""
    seconds: float
    """How long the measured time was."""
    offered: int
    admitted: int
    refused: Mapping[str, int]
    """By code."""
    failed: Mapping[str, int]
    """Admitted and not completed, by code."""
    ttft_met: int
    """Admitted requests whose prefill ended within the TTFT target of their arrival."""
    first_token_met: int
    """Those whose client had its first token within the TTFT target."""
    tpot_met: int
    """Those with a whole answer, at a mean interval within the TPOT target."""
    good: int
    """Those that met both targets: `ttft_met` and `tpot_met`."""
    good_tokens: int
    """Prompt and answer tokens of the good ones."""

    @property
    def offered_rate(self) -> float:
        """Requests per second."""
        return self.offered / self.seconds

    @property
    def goodput(self) -> float:
        """Requests per second that met both targets."""
        return self.good / self.seconds

    @property
    def good_tokens_rate(self) -> float:
        """Tokens per second of such requests: does not rise when long prompts are turned away."""
        return self.good_tokens / self.seconds

    def share(self, count: int) -> float | None:
        """`count` as a fraction of the admitted; None if there are none."""
        return count / self.admitted if self.admitted else None


def figures_of(
    arm: Arm,
    load: float,
    clients: Sequence[Client],
    rows: Mapping[str, RequestRow],
    *,
    slo: Slo,
    seconds: float,
) -> Figures:
    """Sum up what became of `clients`; `rows` has the journal's row of each, by name."""
    ttft_s, tpot_s = slo.ttft_s, slo.tpot_s
    refused: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    met: Counter[str] = Counter()
    for client in clients:
        row = rows[client.name]
        if row.terminal.turned_away:
            refused[row.code or "?"] += 1
            continue
        if row.terminal is not Terminal.COMPLETED:
            failed[row.code or "?"] += 1
        ttft = within(row.prefill_ttft_s, ttft_s)
        tpot = within(client.tpot_s, tpot_s)
        met["ttft"] += ttft
        met["first_token"] += within(client.first_token_s, ttft_s)
        met["tpot"] += tpot
        if ttft and tpot:
            met["good"] += 1
            met["tokens"] += client.demand.prompt + client.demand.answer
    return Figures(
        arm=arm,
        load=load,
        seconds=seconds,
        offered=len(clients),
        admitted=len(clients) - refused.total(),
        refused=dict(sorted(refused.items())),
        failed=dict(sorted(failed.items())),
        ttft_met=met["ttft"],
        first_token_met=met["first_token"],
        tpot_met=met["tpot"],
        good=met["good"],
        good_tokens=met["tokens"],
    )


def within(value: float | None, target: float) -> bool:
    """Whether there is a value, and it is no more than the target."""
    return value is not None and value <= target + _ROUNDING_S
