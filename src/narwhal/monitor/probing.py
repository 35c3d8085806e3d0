"""Asking an engine whether it is well, which process it is, and to generate.

Everything goes over the control connections, which serving never takes. That there was none to
be had, or that the engine was merely busy, says nothing of it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

import attrs
import msgspec
import trio

from narwhal.engine import Correlation
from narwhal.fleet import Incarnation
from narwhal.model import (
    ConnectFailed,
    EngineError,
    EngineStatus,
    FailureClass,
    LocalError,
    Role,
    Route,
)
from narwhal.retry import classify_status
from narwhal.telemetry import ProbeResult
from narwhal.wire import openai, vllm
from narwhal.wire.decode import DecodeStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from random import Random

    from narwhal.config import FleetConfig
    from narwhal.engine import EngineClient, PrefillReply, Process, Served
    from narwhal.wire.vllm import Handoff

T = TypeVar("T")

# Long enough for a block of KV cache on any engine, so that a handoff has something to move.
_PROMPT = "The quick brown fox jumps over the lazy dog. " * 16
_TOKENS = 2
# For releasing what a verification left behind: as long as the router gives its own.
_RELEASE_S = 1.0


class Result(StrEnum):
    """What an engine showed."""

    WELL = "well"
    ILL = "ill"
    """It did not do what it was asked."""
    GONE = "gone"
    """It cannot be reached."""
    UNSURE = "unsure"
    """Nothing, one way or the other."""


RESULTS = {
    Result.WELL: ProbeResult.PASSED,
    Result.ILL: ProbeResult.FAILED,
    Result.GONE: ProbeResult.FAILED,
    Result.UNSURE: ProbeResult.UNSURE,
}
"""As metrics count them."""


@attrs.frozen
class Probed:
    """An engine's answer, and in words what it was."""

    result: Result
    why: str


@attrs.frozen
class Identity:
    """Which process an engine is, and how that is set up."""

    incarnation: Incarnation
    process: Process


class Prober:
    """Asks engines. Nothing is raised; a cancel closes the connections, and releases KV cache."""

    def __init__(self, config: FleetConfig, rng: Random) -> None:
        self._config = config
        self._rng = rng

    async def health(self, client: EngineClient) -> Probed:
        """Whether `/health` answers 200, within `engine.health_timeout_s`."""
        within = self._config.engine.health_timeout_s
        asked = await self._ask(client.health, within, "/health")
        if isinstance(asked, Probed):
            return asked
        return Probed(Result.WELL, "/health is 200") if asked else _ill("/health is not 200")

    async def identity(self, client: EngineClient) -> Identity | Probed:
        """Which process it is; what came instead if it does not say."""
        within = self._config.engine.health_timeout_s

        async def ask() -> Identity:
            version = await client.version()
            process = await client.process()
            return Identity(Incarnation(version=version, process_start_s=process.start_s), process)

        return await self._ask(ask, within, "/version and /metrics")

    async def served(self, client: EngineClient) -> list[Served] | Probed:
        """The models that it serves; what came instead if it does not say."""
        within = self._config.engine.health_timeout_s
        return await self._ask(client.served, within, "/v1/models")

    async def generation(
        self, client: EngineClient, partner: EngineClient | None, role: Role
    ) -> Probed:
        """Whether the engine generates in its role, each leg in `engine.first_token_timeout_s`.

        `partner` is a sound engine for the other leg; without one, both run on the engine itself,
        without a handoff. What the partner does wrong says nothing of the engine.
        """
        request = self._request()
        if partner is None:
            return await self._decode(client, vllm.decode_body(request, None))
        producer, decoder = (client, partner) if role is Role.PREFILL else (partner, client)
        made = await self._prefill(producer, decoder, vllm.prefill_body(request))
        if isinstance(made, Probed):
            return made if producer is client else _unsure(f"{partner.iid}: {made.why}")
        got = await self._decode(decoder, vllm.decode_body(request, made), made)
        if decoder is client or got.result is Result.WELL:
            return got
        return _unsure(f"{partner.iid}: {got.why}")

    def _request(self) -> openai.CompletionRequest:
        body = {
            "model": self._config.model,
            # In front, so that no cache knows it: an engine is to show that it can compute.
            "prompt": f"{self._rng.getrandbits(64):016x} {_PROMPT}",
            "max_tokens": _TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        text = msgspec.json.encode(body)
        return openai.parse_request(Route.COMPLETIONS, text, model=self._config.model)

    def _correlation(self) -> Correlation:
        return Correlation(f"probe-{self._rng.getrandbits(64):016x}")

    async def _prefill(
        self, client: EngineClient, decoder: EngineClient, body: bytes
    ) -> Handoff | Probed:
        late: list[PrefillReply] = []

        async def run() -> Handoff:
            reply = await client.prefill(
                Route.COMPLETIONS,
                body,
                self._correlation(),
                on_answer=lambda _at: None,
                on_late=late.append,
                control=True,
            )
            return vllm.parse_prefill(reply.body, whole=False).handoff

        try:
            return await self._ask(run, self._config.engine.first_token_timeout_s, "a prefill")
        finally:
            for reply in late:
                await self._release_late(decoder, reply)

    async def _release_late(self, decoder: EngineClient, reply: PrefillReply) -> None:
        """Free what was handed over in the moment in which nobody wanted it any more."""
        try:
            handoff = vllm.parse_prefill(reply.body, whole=False).handoff
        except EngineError:
            return  # nothing that could be released by its name
        await self._release(decoder, handoff)

    async def _decode(
        self, client: EngineClient, body: bytes, handoff: Handoff | None = None
    ) -> Probed:
        accepted = False

        async def run() -> None:
            nonlocal accepted
            leg = await client.dispatch_decode(
                Route.COMPLETIONS,
                body,
                self._correlation(),
                on_slot=lambda: None,
                before_write=lambda: None,
                control=True,
            )
            stream = DecodeStream(
                route=Route.COMPLETIONS,
                strip_usage=False,
                max_held=self._config.serving.max_response_bytes,
            )
            with leg:
                await leg.head()
                accepted = True
                while not (stream.first_token or stream.error) and (data := await leg.read()):
                    stream.feed(data)
            if not stream.first_token:
                stream.finish()

        try:
            asked = await self._ask(run, self._config.engine.first_token_timeout_s, "a first token")
        finally:
            # A decoder that was written to and said nothing may never have read a word.
            if handoff is not None and not accepted:
                await self._release(client, handoff)
        return asked or Probed(Result.WELL, "it generated")

    async def _release(self, client: EngineClient, handoff: Handoff) -> None:
        """Free a handoff; if that fails, its lease ends some time."""
        body = vllm.release_body(self._config.model, handoff)
        with trio.move_on_after(_RELEASE_S, shield=True):
            try:
                await client.release(body, self._correlation())
            except (EngineError, LocalError):
                return

    async def _ask(self, call: Callable[[], Awaitable[T]], within: float, what: str) -> T | Probed:
        try:
            with trio.fail_after(within):
                return await call()
        except trio.TooSlowError:
            return _ill(f"{what}: no answer within {within:g} s")
        except LocalError as error:
            return _unsure(f"{what}: {error}")
        except EngineStatus as error:
            return _by_status(error, what)
        except ConnectFailed as error:
            return Probed(Result.GONE, f"{what}: {error}")
        except EngineError as error:
            return _ill(f"{what}: {error}")


def _by_status(error: EngineStatus, what: str) -> Probed:
    """A 4xx and a "busy" prove nothing, neither that it works nor that it does not."""
    text = f"{what}: it answered {error.engine_status}"
    said, _ = classify_status(error.engine_status)
    nothing = said in (FailureClass.NEUTRAL, FailureClass.OVERLOAD)
    return _unsure(text) if nothing else _ill(text)


def _ill(why: str) -> Probed:
    return Probed(Result.ILL, why)


def _unsure(why: str) -> Probed:
    return Probed(Result.UNSURE, why)
