"""Predictive admission of one request: which ways it has now, and whether one of them will do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.admission import Admitted, Refused, judge
from narwhal.model import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from narwhal.admission import Verdict
    from narwhal.router.core import Core
    from narwhal.router.life import RequestLife


class Gate:
    """Judges requests. It changes nothing: a verdict is good for the moment it is given in."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def judge(self, life: RequestLife, *, waited: bool = False) -> Verdict | None:
        """Let a request in or refuse it; None where admission is `open`, which refuses nobody.

        But for want of engines that are in service.

        One that has `waited` for a seat is behind nobody who waits for one.
        """
        core = self._core
        if not core.predictive:
            if core.roster.takers(Phase.PREFILL):
                return None
            return judge((), (), waited_s=0.0, targets=core.prices.targets)
        now = trio.current_time()
        prefills = core.roster.live(Phase.PREFILL, life.avoid, now)
        if not core.roster.splits:
            return self._whole(life, prefills, now)
        decodes = core.roster.live(Phase.DECODE, life.avoid, now)
        line_s = core.desks[Phase.PREFILL].line_s + (0.0 if waited else core.queue.line_s)
        verdict = self._split(life, prefills, decodes, now, line_s)
        if (
            isinstance(verdict, Refused)
            and core.prices.backs_up(verdict)
            and core.prices.any_idle_decoder(decodes)
        ):
            # A decode engine can run both phases, as long as nothing decodes there.
            whole = self._whole(life, decodes, now)
            if isinstance(whole, Admitted):
                return whole
        return verdict

    def _split(
        self,
        life: RequestLife,
        prefills: Sequence[str],
        decodes: Sequence[str],
        now: float,
        line_s: float,
    ) -> Verdict:
        prices, tokens = self._core.prices, life.prompt_tokens
        return judge(
            prices.prefill_paths(prefills, tokens, now, decoders=decodes, line_s=line_s),
            prices.decode_paths(decodes, tokens, life.output_tokens, now=now),
            waited_s=now - life.arrival,
            targets=prices.targets,
        )

    def _whole(self, life: RequestLife, iids: Sequence[str], now: float) -> Verdict:
        prices = self._core.prices
        verdict = judge(
            prices.whole_paths(iids, life.prompt_tokens, life.output_tokens, now),
            (),
            waited_s=now - life.arrival,
            targets=prices.targets,
        )
        return attrs.evolve(verdict, whole=True) if isinstance(verdict, Admitted) else verdict

    def hopeless_at(self, life: RequestLife) -> float:
        """When even an idle engine would be too late for a request that waits; Trio's clock."""
        core = self._core
        if not core.predictive:
            return float("inf")
        now = trio.current_time()
        live = core.roster.live(Phase.PREFILL, life.avoid, now)
        paths = (
            core.prices.prefill_paths(
                live,
                life.prompt_tokens,
                now,
                decoders=core.roster.live(Phase.DECODE, life.avoid, now),
            )
            if core.roster.splits
            else core.prices.whole_paths(live, life.prompt_tokens, life.output_tokens, now)
        )
        least = min((path.alone_s for path in paths), default=0.0)
        return life.arrival + core.prices.targets.budget_s - least
