"""One engine under measurement: what it says of itself, and whether it is left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.engine import FEWEST_IDS, Correlation, text_request
from narwhal.model import (
    EngineError,
    EngineProtocolError,
    EngineStatus,
    HandoffRejected,
    LocalError,
    StreamFailed,
)
from narwhal.profiler.stopping import ProfilingStopped, Reason
from narwhal.profiler.sweep import Room
from narwhal.profiles import Measured, TextSample, generation_digest
from narwhal.wire import vllm
from narwhal.wire.errors import answered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from random import Random
    from typing import TypeVar

    from narwhal.config import FleetConfig
    from narwhal.engine import EngineClient, Gauges

    T = TypeVar("T")

# A request that was closed is gone from an engine's gauges a few milliseconds later.
_SETTLE_S = 2.0
_LOOK_AGAIN_S = 0.05


@attrs.frozen(kw_only=True)
class Facts:
    """What an engine is, as it says itself."""

    engine: Measured
    room: Room
    ids: tuple[int, ...]
    """Token ids that it knows."""
    text: tuple[TextSample, ...]


class Subject:
    """Asks one engine, each time within the fleet file's limits.

    Whatever goes wrong with the engine is raised as `ProfilingStopped`.
    """

    def __init__(self, config: FleetConfig, client: EngineClient, rng: Random) -> None:
        self.config = config
        self.client = client
        self.iid = client.iid
        self._rng = rng
        self._own_tokens = 0
        self._prompt_tokens: int | None = None

    def correlation(self) -> Correlation:
        """An id for a request, so that it is found in the engine's log."""
        return Correlation(f"profile-{self._rng.getrandbits(64):016x}")

    def stopped(self, reason: Reason, text: str) -> ProfilingStopped:
        """The error that says so of this engine."""
        return ProfilingStopped(self.iid, reason, text)

    async def ask(
        self, call: Callable[[], Awaitable[T]], *, within: float, setting: str, what: str
    ) -> T:
        """Await `call`, at most `within` seconds, which is what the `setting` says."""
        failures: list[Exception] = []
        try:
            with trio.fail_after(within):
                return await call()
        except* (EngineError, LocalError, trio.TooSlowError) as group:
            failures += _leaves(group)
        raise self._explained(failures[0], within, setting, what) from failures[0]

    def _explained(
        self, error: Exception, within: float, setting: str, what: str
    ) -> ProfilingStopped:
        if isinstance(error, trio.TooSlowError):
            text = f"{what} took longer than {setting} ({within:g} s): raise it"
            return self.stopped(Reason.TOO_SLOW, text)
        if isinstance(error, EngineStatus):
            text = f"{what}: {answered(error.engine_status, error.body)}"
            return self.stopped(Reason.REFUSED, text)
        if isinstance(error, EngineProtocolError | StreamFailed | HandoffRejected):
            return self.stopped(Reason.REFUSED, f"{what}: {error}")
        return self.stopped(Reason.UNREACHABLE, f"{what}: {error}")

    # What it says of itself

    async def facts(self, texts: Sequence[str]) -> Facts:
        """Ask what the engine is; `texts` are counted on it."""
        version = await self._probe(self.client.version, "asking for its version")
        gauges = await self._gauges()
        if gauges.process_start_s is None:
            text = "/metrics has no process_start_time_seconds, by which a restart is noticed"
            raise self.stopped(Reason.REFUSED, text)
        counted = [await self._count(text) for text in texts]
        ids = tuple({token for each in counted for token in each.tokens})
        context = min((each.max_model_len for each in counted if each.max_model_len), default=None)
        if context is None or len(ids) < FEWEST_IDS:
            text = "/tokenize does not say its max_model_len, or makes too few tokens of a text"
            raise self.stopped(Reason.REFUSED, text)
        return Facts(
            engine=Measured(
                iid=self.iid,
                version=version,
                process_start_s=gauges.process_start_s,
                generation_digest=generation_digest(
                    version, self.config.model, self.config.engine_contract
                ),
                kv_capacity_tokens=gauges.kv_capacity_tokens,
            ),
            room=Room(context_tokens=context, kv_tokens=gauges.kv_capacity_tokens),
            ids=ids,
            text=tuple(
                TextSample(characters=len(text), tokens=len(each.tokens))
                for text, each in zip(texts, counted, strict=True)
            ),
        )

    async def check_same(self, engine: Measured) -> None:
        """Stop if it is not the process any more that it was."""
        version = await self._probe(self.client.version, "asking for its version")
        gauges = await self._gauges()
        if (version, gauges.process_start_s) != (engine.version, engine.process_start_s):
            text = "it was restarted while it was measured: measure it again"
            raise self.stopped(Reason.RESTARTED, text)

    async def _count(self, text: str) -> vllm.TokenIds:
        body = vllm.tokenize_body(text_request(self.config.model, text))
        return await self.ask(
            lambda: self.client.token_ids(body),
            within=self.config.engine.tokenize_timeout_s,
            setting="engine.tokenize_timeout_s",
            what="counting tokens",
        )

    async def _gauges(self) -> Gauges:
        return await self._probe(self.client.gauges, "reading its /metrics")

    async def _probe(self, call: Callable[[], Awaitable[T]], what: str) -> T:
        return await self.ask(
            call,
            within=self.config.engine.health_timeout_s,
            setting="engine.health_timeout_s",
            what=what,
        )

    # Whether it is left alone

    def sent(self, prompt_tokens: int) -> None:
        """Note that a prompt of that length was sent on purpose."""
        self._own_tokens += prompt_tokens

    async def watch(self) -> None:
        """Begin to look for other people's work; stop if there is some already."""
        gauges = await self._idle_gauges()
        self._own_tokens, self._prompt_tokens = 0, gauges.prompt_tokens

    async def check_alone(self) -> None:
        """Stop if the engine works, or worked since `watch`, for anybody else."""
        gauges = await self._idle_gauges()
        if gauges.prompt_tokens is None or self._prompt_tokens is None:
            return
        foreign = gauges.prompt_tokens - self._prompt_tokens - self._own_tokens
        if foreign > 0:
            raise self._busy(f"{foreign} prompt tokens of others came in between")

    async def _idle_gauges(self) -> Gauges:
        """A reading with nothing at work; what was just closed gets a moment to be gone."""
        until = trio.current_time() + _SETTLE_S
        while True:
            gauges = await self._gauges()
            running, waiting = gauges.running or 0, gauges.waiting or 0
            if not running and not waiting:
                return gauges
            if trio.current_time() >= until:
                raise self._busy(f"{running} requests run and {waiting} wait")
            await trio.sleep(_LOOK_AGAIN_S)

    def _busy(self, how: str) -> ProfilingStopped:
        text = f"it is busy: {how}; a profile is of an engine with nothing else to do: drain it"
        return self.stopped(Reason.BUSY, text)


def _leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    """The exceptions in a group, however they are nested."""
    found: list[Exception] = []
    for each in group.exceptions:
        found += _leaves(each) if isinstance(each, BaseExceptionGroup) else [each]
    return found
