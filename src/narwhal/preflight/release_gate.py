"""The gate `release`: KV cache that nobody fetches is freed, and when."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.config.bounds import number
from narwhal.engine import RELEASE_S
from narwhal.preflight.asking import Kind, Trouble, ask
from narwhal.preflight.engine_gates import health_bound
from narwhal.preflight.gates import Gate, Grade

if TYPE_CHECKING:
    from collections.abc import Iterable

    from narwhal.config import FleetConfig
    from narwhal.engine import EngineClient
    from narwhal.preflight.gates import About, Finding
    from narwhal.preflight.legs import Legs
    from narwhal.preflight.view import View

# A release leg was seen to free the producer in 0.04 s; a busy engine needs a step or two more.
_AT_ONCE_S = 2.0
_LOOK_AGAIN_S = 0.05
# An engine looks for ended leases when it has something to do, and in the end once a second or so.
_LATE = 1.1
_LATE_S = 3.0
# What a measured lease may be short of what was set: a poll, and the way of the answer.
_EARLY_S = 0.25
_NO_USAGE = Trouble(kind=Kind.GARBAGE, text="/metrics has no vllm:kv_cache_usage_perc")
_FLAT = Trouble(kind=Kind.GARBAGE, text="its vllm:kv_cache_usage_perc does not rise with a handoff")


@attrs.frozen
class Release:
    """Watches one producer's memory while handoffs of it are let go and forgotten."""

    config: FleetConfig
    view: View
    partner: EngineClient
    legs: Legs
    watch_s: float
    """Longest time to watch a forgotten handoff."""

    @property
    def about(self) -> About:
        """Findings about the producer."""
        return self.view.at(Gate.RELEASE)

    async def run(self) -> Iterable[Finding]:
        """Let one handoff go by a release leg, and leave another one to its lease."""
        first = await self._by_leg()
        if first.grade is not Grade.PASS:
            return [first]
        return [first, await self._by_lease()]

    async def _by_leg(self) -> Finding:
        expected = f"free within {_AT_ONCE_S:g} s of a release leg"
        held = self.legs.held(self.partner)
        try:
            before = await self._usage()
            made = await self.legs.produce(self.view.client, self.legs.request(), held)
            pinned = await self._usage()
            if isinstance(made, Trouble):
                return self.about.failed(made.text, "a handoff", "look into its log")
            if isinstance(before, Trouble) or isinstance(pinned, Trouble):
                return self._unseen(before, pinned)
            if pinned <= before:
                return self._unseen(_FLAT)
            began = trio.current_time()
            sent = await held.release()
            freed = await self._freed(before, began, _AT_ONCE_S)
        finally:
            await held.release()
        if isinstance(freed, Trouble):
            return self._unseen(freed)
        if freed is None:
            seen = f"still held {_AT_ONCE_S:g} s after the release leg to {self.partner.iid}"
            if not sent:
                seen += f", which was not answered within {RELEASE_S:g} s"
            return self.about.failed(
                seen,
                expected,
                "KV of clients that left stays pinned until the lease ends: use a version whose "
                "decoder tells the producer, and look into the decoder's log",
            )
        return self.about.passed(
            f"free {freed:.2g} s after a release leg to {self.partner.iid}",
            expected,
            released_s=freed,
        )

    async def _by_lease(self) -> Finding:
        lease = self.config.engine.kv_lease_s
        latest = lease * _LATE + _LATE_S
        watched = min(latest, self.watch_s)
        held = self.legs.held(self.partner)
        try:
            before = await self._usage()
            made = await self.legs.produce(self.view.client, self.legs.request(), held)
            if isinstance(made, Trouble):
                return self.about.failed(made.text, "a handoff", "look into its log")
            if isinstance(before, Trouble):
                return self._unseen(before)
            freed = await self._freed(before, made.answered, watched)
        finally:
            await held.release()
        if isinstance(freed, Trouble):
            return self._unseen(freed)
        if freed is not None:
            return self._judged(freed, lease)
        if watched < latest:
            return self.about.skipped(
                f"a forgotten handoff was held for the {watched:.3g} s that were watched; its "
                f"lease ends after {number(lease)} s (engine.kv_lease_s)",
                f"give --lease-wait {math.ceil(latest)} to see it end",
            )
        return self.about.failed(
            f"a forgotten handoff is still held after {watched:.3g} s",
            f"free when engine.kv_lease_s ({number(lease)} s) is over",
            "set engine.kv_lease_s to the engines' kv_lease_duration; if it is, their KV leaks",
        )

    def _judged(self, freed: float, lease: float) -> Finding:
        expected = f"kept for engine.kv_lease_s ({number(lease)} s), and then free"
        seen = f"a forgotten handoff was free after {freed:.3g} s"
        if freed >= lease - _EARLY_S:
            return self.about.passed(seen, expected, lease_s=freed)
        return self.about.failed(
            seen,
            expected,
            f"set engine.kv_lease_s to {max(freed - 0.5, freed / 2):.2g}, or start the engine with "
            f"kv_lease_duration {number(lease)}: a decoder that comes after the lease can answer "
            "wrong tokens",
            lease_s=freed,
        )

    def _unseen(self, *why: object) -> Finding:
        said = next(each.text for each in why if isinstance(each, Trouble))
        return self.about.warned(
            said, "its KV memory, used and freed", "whether handoffs are freed is not known"
        )

    async def _usage(self) -> float | Trouble:
        said = await ask(self.view.client.kv_counters, health_bound(self.config), "/metrics")
        if isinstance(said, Trouble):
            return said
        return _NO_USAGE if said.usage is None else said.usage

    async def _freed(self, before: float, began: float, within: float) -> float | Trouble | None:
        """Seconds from `began` until no more is held than `before`; None if that took longer."""
        while True:
            usage = await self._usage()
            spent = trio.current_time() - began
            if isinstance(usage, Trouble):
                return usage
            if usage <= before:
                return spent
            if spent >= within:
                return None
            await trio.sleep(_LOOK_AGAIN_S)
