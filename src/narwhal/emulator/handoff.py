"""KV handoffs between the engines of one process: descriptors, pulls, and what goes wrong.

On a real fleet a decoder reads the producer's blocks over the network and then tells the
producer, out of band, that it has. Here both engines are in one process, so a pull happens
in one synchronous step: when the decode leg is received. Each bad descriptor does what was
measured on vLLM 0.32.0 with NIXL, down to ending the decoder's process.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from narwhal.emulator.core import EngineCore, KvHandle

Descriptor = dict[str, Any]
"""`kv_transfer_params` as it is on the wire."""

# Seconds, all measured on the real engine.
HANDSHAKE_TIMEOUT_S = 5.0
UNKNOWN_ENGINE_S = 0.02
PEER_GONE_S = 0.01
BAD_BLOCKS_S = 0.2
LOST_REQUEST_S = 60.0

# Prompts a decoder remembers having pulled; a real prefix cache is as large as its KV cache.
CACHED_PROMPTS = 256


class Verdict(Enum):
    """What a decoder makes of a descriptor."""

    RIGHT = "right"
    WRONG = "wrong"
    """The blocks hold something else: status 200 and wrong tokens."""
    FAILED = "failed"
    """The load fails: 500, the engine lives."""
    FATAL = "fatal"
    """The engine process dies."""
    LOST = "lost"
    """The request hangs, then the engine process dies."""


@attrs.frozen
class Pull:
    """How a pull went: after `delay` seconds the verdict shows."""

    verdict: Verdict
    delay: float = 0.0
    tokens: int = 0
    """Prompt tokens that came from the producer."""


@attrs.define(eq=False, kw_only=True)
class Connector:
    """An engine's place in the KV network, one for each run of its process."""

    engine_id: str
    host: str
    port: int
    """Where other engines reach it; only its identity counts here, nothing listens."""
    core: EngineCore
    changed: Callable[[], object] = lambda: None
    """Called after another engine has changed the state of `core`."""
    alive: bool = True
    transfers: int = 0
    transferred_tokens: int = 0
    failed_transfers: int = 0
    unsaid: list[tuple[Connector, str]] = attrs.field(factory=list)
    """Producers that are to be told, and of which requests."""
    _met: set[str] = attrs.field(factory=set)
    """Engines it has shaken hands with: their address is not looked at again."""
    _pulled: OrderedDict[int, None] = attrs.field(factory=OrderedDict)

    def remembers(self, digest: int) -> bool:
        """Whether its own prefix cache has the prompt from an earlier pull."""
        return digest in self._pulled

    def remember(self, digest: int) -> None:
        """Put a pulled prompt into the prefix cache."""
        self._pulled[digest] = None
        if len(self._pulled) > CACHED_PROMPTS:
            self._pulled.popitem(last=False)

    def has_met(self, engine_id: str) -> bool:
        """Whether the handshake with that engine is done."""
        return engine_id in self._met

    def meet(self, engine_id: str) -> None:
        """Record a handshake."""
        self._met.add(engine_id)

    def notified(self, request_id: str, now: float) -> None:
        """A decoder has no more need of what this engine keeps for `request_id`."""
        self.core.notify(request_id, now)
        self.changed()

    def describe(self, handle: KvHandle) -> Descriptor:
        """The `kv_transfer_params` that lead a decoder to `handle`."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(handle.blocks)],
            "remote_engine_id": self.engine_id,
            "remote_request_id": handle.request_id,
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": handle.tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": 0,
        }


class Fleet:
    """The engines of one process that can hand KV over to each other."""

    def __init__(self) -> None:
        self._connectors: list[Connector] = []

    def join(self, connector: Connector) -> None:
        """Add an engine, or a new run of one; the old run's connector is to `leave` first."""
        self._connectors.append(connector)

    def leave(self, connector: Connector) -> None:
        """The process behind `connector` is gone, and its KV cache with it."""
        connector.alive = False
        self._connectors.remove(connector)

    def pull(
        self, decoder: Connector, params: Mapping[str, Any], digest: int, tokens: int, now: float
    ) -> Pull:
        """Let `decoder` load what `params` names, for a prompt of `tokens` tokens.

        Frees the producer's blocks where a real decoder would have told the producer.
        """
        self._say_what_waits(decoder, now)
        blocks = _block_ids(params)
        named = ("remote_engine_id", "remote_host", "remote_port")
        if not blocks or any(params.get(name) is None for name in named):
            return Pull(Verdict.FATAL)
        if params.get("remote_request_id") is None:
            return Pull(Verdict.LOST, LOST_REQUEST_S)
        if len(blocks) < decoder.core.pool.needed(tokens):
            return Pull(Verdict.FATAL)
        producer, delay = self._find(decoder, params)
        if producer is None:
            decoder.failed_transfers += 1
            return Pull(Verdict.FAILED, delay)
        pool = producer.core.pool
        if not all(pool.exists(block) for block in blocks):
            decoder.failed_transfers += 1
            return Pull(Verdict.FAILED, BAD_BLOCKS_S)
        cached = decoder.remembers(digest)
        right = cached or pool.holds(blocks[: pool.needed(tokens)], digest)
        producer.notified(str(params["remote_request_id"]), now)
        if right:
            decoder.remember(digest)
        moved = 0 if cached else tokens
        decoder.transfers += not cached
        decoder.transferred_tokens += moved
        return Pull(Verdict.RIGHT if right else Verdict.WRONG, tokens=moved)

    def release(self, decoder: Connector, params: Mapping[str, Any], now: float) -> None:
        """`decoder` rejected the request itself: the producer frees what it named, at once.

        Unless it is the producer: an engine takes no word from itself. And if the two have yet to
        shake hands, the word waits for the decoder's next handoff, whatever that is.
        """
        self._say_what_waits(decoder, now)
        producer = self._by_id(params.get("remote_engine_id"))
        request_id = params.get("remote_request_id")
        if producer is None or producer is decoder or not isinstance(request_id, str):
            return
        if decoder.has_met(producer.engine_id):
            producer.notified(request_id, now)
        else:
            decoder.meet(producer.engine_id)
            decoder.unsaid.append((producer, request_id))

    def _say_what_waits(self, decoder: Connector, now: float) -> None:
        for producer, request_id in decoder.unsaid:
            producer.notified(request_id, now)
        decoder.unsaid.clear()

    def _by_id(self, engine_id: object) -> Connector | None:
        for connector in self._connectors:
            if connector.alive and connector.engine_id == engine_id:
                return connector
        return None

    def _find(
        self, decoder: Connector, params: Mapping[str, Any]
    ) -> tuple[Connector | None, float]:
        """The producer; or None and the seconds until the decoder gives up."""
        engine_id = params["remote_engine_id"]
        producer = self._by_id(engine_id)
        if decoder.has_met(engine_id):
            return producer, PEER_GONE_S
        address = (params["remote_host"], params["remote_port"])
        at_address = [c for c in self._connectors if c.alive and (c.host, c.port) == address]
        if not at_address:
            return None, HANDSHAKE_TIMEOUT_S
        if producer not in at_address:
            return None, UNKNOWN_ENGINE_S
        decoder.meet(engine_id)
        return producer, 0.0


def _block_ids(params: Mapping[str, Any]) -> list[Any]:
    """The first KV cache group's block ids; empty if there are none."""
    groups = params.get("remote_block_ids")
    if not isinstance(groups, list) or not groups or not isinstance(groups[0], list):
        return []
    return list(groups[0])
