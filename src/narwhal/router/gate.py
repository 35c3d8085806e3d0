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

    def judge(self, life: RequestLife) -> Verdict | None:
        """Let a request in or refuse it; None where admission is `open`, which refuses nobody."""
        core = self._core
        if not core.predictive:
            return None
        now = trio.current_time()
        prefills = core.live(Phase.PREFILL, life.avoid, now)
        if not core.splits:
            return self._judge(life, self._unshared(prefills), (), now)
        decodes = core.live(Phase.DECODE, life.avoid, now)
        verdict = self._judge(life, prefills, decodes, now)
        if isinstance(verdict, Refused) and core.prices.backs_up(verdict):
            # A decode engine can run both phases, as long as nothing decodes there: what the two
            # do to each other was not measured.
            whole = self._judge(life, self._unshared(decodes), (), now)
            if isinstance(whole, Admitted):
                return attrs.evolve(whole, whole=True)
        return verdict

    def _judge(
        self, life: RequestLife, prefills: Sequence[str], decodes: Sequence[str], now: float
    ) -> Verdict:
        prices = self._core.prices
        return judge(
            prices.prefill_paths(prefills, life.prompt_tokens, now),
            prices.decode_paths(decodes, life.prompt_tokens, life.output_tokens, now=now),
            waited_s=now - life.arrival,
            targets=prices.targets,
        )

    def _unshared(self, iids: Sequence[str]) -> list[str]:
        residents = self._core.ledger.residents
        return [iid for iid in iids if not residents(iid, Phase.DECODE)]

    def hopeless_at(self, life: RequestLife) -> float:
        """When even an idle engine would be too late for a request that waits; Trio's clock."""
        core = self._core
        if not core.predictive:
            return float("inf")
        paths = core.prices.prefill_paths(
            core.live(Phase.PREFILL, life.avoid, trio.current_time()),
            life.prompt_tokens,
            trio.current_time(),
        )
        least = min((path.alone_s for path in paths), default=0.0)
        return life.arrival + core.prices.targets.budget_s - least
