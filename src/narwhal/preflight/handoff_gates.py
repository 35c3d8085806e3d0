"""The gates `produce` and `consume`: a handoff is made, and a decoder answers right with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from narwhal.config.binds import is_loopback
from narwhal.preflight.asking import Kind, Trouble, ask
from narwhal.preflight.engine_gates import health_bound
from narwhal.preflight.gates import About, Gate, Grade, pair_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from narwhal.config import FleetConfig
    from narwhal.engine import EngineClient, KvCounters
    from narwhal.preflight.gates import Finding
    from narwhal.preflight.legs import Answer, Legs, Produced
    from narwhal.preflight.view import View
    from narwhal.wire.openai import CompletionRequest

# Engines write their counters down a moment after the answer.
_SETTLE_S = 2.0
_LOOK_AGAIN_S = 0.05
_CONNECTOR = (
    'start it with --kv-transfer-config and the connector, as "kv_producer" or "kv_both"; if it is '
    'to decode for good, give it "role": "decode" and "pin": true'
)
_REACH_SIDE = (
    "let the decoder reach the producer's side channel (VLLM_NIXL_SIDE_CHANNEL_HOST and _PORT of "
    "the producer, and what is between them); if pulling takes that long, raise "
    "engine.first_token_timeout_s"
)


async def produce(
    config: FleetConfig, view: View, partner: EngineClient, legs: Legs, repeats: int
) -> Finding:
    """Whether the prefill leg returns a complete handoff; `partner` lets each go again."""
    about, expected = view.at(Gate.PRODUCE), "a complete handoff (kv_transfer_params)"
    times = []
    for _ in range(repeats):
        began = trio.current_time()
        made = await _produced(view, partner, legs)
        if isinstance(made, Trouble):
            return _not_produced(config, about, made, expected)
        times.append(made.answered - began)
        handoff = made.handoff
    slowest = max(times)
    view.side_channel = f"{handoff.remote_host}:{handoff.remote_port}"
    view.engine_id = handoff.remote_engine_id
    seen = f"{handoff.blocks} blocks at {view.side_channel}, after {slowest:.3g} s at most"
    return about.passed(seen, expected, prefill_s=slowest, blocks=handoff.blocks)


async def _produced(view: View, partner: EngineClient, legs: Legs) -> Produced | Trouble:
    held = legs.held(partner)
    try:
        return await legs.produce(view.client, legs.request(), held)
    finally:
        await held.release()


def _not_produced(config: FleetConfig, about: About, made: Trouble, expected: str) -> Finding:
    if made.kind is not Kind.GARBAGE:
        return about.failed(made.text, expected, "look into the engine's log")
    if "no kv_transfer_params" in made.text and not config.engine.require_handoff:
        advice = f"engine.require_handoff is false: requests are computed twice; {_CONNECTOR}"
        return about.failed(made.text, expected, advice)
    return about.failed(made.text, expected, _CONNECTOR)


def _is_loopback(host: str) -> bool:
    return host == "localhost" or is_loopback(host)


def shared_channels(views: Iterable[View]) -> Iterator[Finding]:
    """Engines that name the place where another one keeps its KV cache."""
    first: dict[str, View] = {}
    for view in views:
        if view.side_channel is None:
            continue
        other = first.setdefault(view.side_channel, view)
        if other is view:
            continue
        same = " and are one process" if other.engine_id == view.engine_id else ""
        yield view.at(Gate.PRODUCE).failed(
            f"{other.iid} and {view.iid} both name {view.side_channel}{same}",
            "a side channel of its own for each engine",
            "give each its own VLLM_NIXL_SIDE_CHANNEL_PORT, and each its own url",
        )


@attrs.frozen
class Handover:
    """One handoff between two engines, tried out."""

    config: FleetConfig
    producer: View
    decoder: View
    legs: Legs

    @property
    def about(self) -> About:
        """Findings about the pair."""
        return About(Gate.CONSUME, pair_name(self.producer.iid, self.decoder.iid))

    async def consume(self, repeats: int) -> Finding:
        """Whether the decoder says what the producer says alone, and KV moved, each time."""
        found: list[Finding] = []
        while len(found) < repeats and not (found and found[-1].grade is Grade.FAIL):
            found.append(await self._once())
        return max(found, key=_badness)

    async def _once(self) -> Finding:
        request, about = self.legs.request(), self.about
        before = await self._counters()
        held = self.legs.held(self.decoder.client)
        try:
            made = await self.legs.produce(self.producer.client, request, held)
            if isinstance(made, Trouble):
                return about.failed(made.text, "a handoff", "look into the producer's log")
            answer = await self.legs.decode(self.decoder.client, request, held)
        finally:
            await held.release()
        if isinstance(answer, Trouble):
            return self._not_pulled(answer)
        alone = await self.legs.decode(self.producer.client, request)
        if isinstance(alone, Trouble):
            return about.failed(
                f"{self.producer.iid} alone: {alone.text}", "an answer to compare", "see its log"
            )
        if answer.text != alone.text:
            return self._other_text(answer, alone, await self._alone_on_decoder(request))
        return await self._moved(before, made, answer)

    async def _alone_on_decoder(self, request: CompletionRequest) -> Answer | Trouble:
        return await self.legs.decode(self.decoder.client, self.legs.afresh(request))

    def _not_pulled(self, trouble: Trouble) -> Finding:
        where = self.producer.side_channel
        seen = f"{trouble.text}; the handoff was to be fetched from {where}"
        advice = _REACH_SIDE
        away = self.producer.spec.host != self.decoder.spec.host
        if away and _is_loopback((where or "").rpartition(":")[0]):
            advice = (
                f"start {self.producer.iid} with VLLM_NIXL_SIDE_CHANNEL_HOST="
                f"{self.producer.spec.host}: other hosts cannot fetch from {where}"
            )
        if trouble.kind in (Kind.UNREACHABLE, Kind.CLOSED):
            advice = "the decoder may have died of it: look into its log"
        elif trouble.kind is not Kind.SILENT:
            advice = f"look into the decoder's log; {advice}"
        return self.about.failed(seen, "an answer with the KV cache handed over", advice)

    def _other_text(self, answer: Answer, alone: Answer, decoder: Answer | Trouble) -> Finding:
        seen = f"it says {_shown(answer.text)}, and {self.producer.iid} alone {_shown(alone.text)}"
        expected = "the same text at temperature 0"
        if not isinstance(decoder, Trouble) and decoder.text == answer.text:
            return self.about.failed(
                f"{seen}; without a handoff {self.decoder.iid} says the same as with it",
                expected,
                "the two engines compute differently: run one model, data type and attention "
                "backend on both",
            )
        return self.about.failed(
            seen,
            expected,
            "the KV cache does not arrive as it was made: run one version, model, data type, block "
            "size and attention backend on both, and look into the connector's log",
        )

    async def _counters(self) -> KvCounters | Trouble:
        client = self.decoder.client
        return await ask(client.kv_counters, health_bound(self.config), "/metrics")

    async def _moved(self, before: KvCounters | Trouble, made: Produced, answer: Answer) -> Finding:
        """Whether the decoder's own counters say that KV came from elsewhere."""
        figures = {"first_token_s": answer.first_token_s}
        expected = "the same text as alone, and KV moved by the decoder's counters"
        after: KvCounters | Trouble = before
        with trio.move_on_after(_SETTLE_S):
            while True:
                after = await self._counters()
                if isinstance(after, Trouble) or _risen(before, after):
                    break
                await trio.sleep(_LOOK_AGAIN_S)
        if isinstance(before, Trouble) or isinstance(after, Trouble):
            trouble = before if isinstance(before, Trouble) else after
            assert isinstance(trouble, Trouble), "one of them is"  # noqa: S101 - invariant
            return self.about.warned(
                trouble.text, expected, "whether KV moved is not known", **figures
            )
        if before.transfers is None and before.external_tokens is None:
            return self.about.warned(
                "the same text; the decoder has no counters of transfers",
                expected,
                "whether KV moved or was computed anew is not known: use a version that counts",
                **figures,
            )
        if not _risen(before, after):
            return self.about.failed(
                "the same text, but no KV moved: the decoder computed the prompt itself",
                expected,
                'start it with a KV connector, as "kv_consumer" or "kv_both"',
                **figures,
            )
        tokens, size = _difference(before, after)
        told = made.prompt_tokens
        if told is not None and tokens is not None and tokens < told:
            return self.about.warned(
                f"only {tokens} of {told} prompt tokens came from the producer",
                expected,
                "the decoder computes the rest: look for other work on it, or into its log",
                **figures,
            )
        return self.about.passed(
            f"the same text; {_size(tokens, size)} in {answer.first_token_s:.3g} s",
            expected,
            **figures,
            **({} if tokens is None else {"moved_tokens": tokens}),
            **({} if size is None else {"moved_bytes": size}),
        )


def _badness(finding: Finding) -> tuple[int, float]:
    """Of several tries the worst is told, and of those that went well the slowest."""
    grade = (Grade.PASS, Grade.WARN, Grade.FAIL).index(finding.grade)
    return grade, finding.figures.get("first_token_s", 0.0)


def _risen(before: KvCounters | Trouble, after: KvCounters) -> bool:
    if isinstance(before, Trouble):
        return True
    pairs = (
        (before.transfers, after.transfers),
        (before.external_tokens, after.external_tokens),
    )
    told = [(old, new) for old, new in pairs if old is not None or new is not None]
    return bool(told) and all((new or 0) > (old or 0) for old, new in told)


def _difference(before: KvCounters, after: KvCounters) -> tuple[int | None, int | None]:
    """Tokens and bytes that came."""
    tokens = size = None
    if after.external_tokens is not None:
        tokens = after.external_tokens - (before.external_tokens or 0)
    if after.transferred_bytes is not None:
        size = after.transferred_bytes - (before.transferred_bytes or 0)
    return tokens, size


def _size(tokens: int | None, size: int | None) -> str:
    parts = [] if tokens is None else [f"{tokens} tokens"]
    parts += [] if size is None else [f"{size / 1e6:.3g} MB"]
    return ", ".join(parts) or "KV moved"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")  # noqa: PLR2004 - a line of text
