"""The measurements themselves: each one is a few requests, timed where the router times them.

Whatever goes wrong is raised as `ProfilingStopped`. A cancel closes the connections, and the
engines drop the requests; KV cache that was handed over to nobody is released.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio

from narwhal.engine import HeldHandoff
from narwhal.model import Route
from narwhal.profiler.cohort import Cohort, first_and_interval
from narwhal.profiler.sweep import HANDOFF_TOKENS, LEAST_SPARE
from narwhal.profiles import HandoffSample, PrefillSample
from narwhal.wire import vllm
from narwhal.wire.decode import DecodeStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from narwhal.engine import PrefillReply, Prompts
    from narwhal.profiler.subject import Subject
    from narwhal.profiles import DecodeSample

    OnTokens = Callable[[int, float], None]
    """Told how many tokens a stream has, and when."""

T = TypeVar("T")

# A difference of two measured times may come out as nothing, or as less.
_LEAST_HANDOFF_S = 1e-6


async def measure_prefill(subject: Subject, prompts: Prompts, tokens: int) -> PrefillSample:
    """Time one prefill, from the request to the head of its answer."""
    body = prompts.body(tokens)
    subject.sent(tokens)
    began = trio.current_time()
    reply = await _within_prefill(subject, partial(_prefill, subject, body), tokens)
    return PrefillSample(tokens=tokens, seconds=reply.answered - began)


async def measure_interval(subject: Subject, prompts: Prompts, tokens: int, wanted: int) -> float:
    """The mean interval of one stream of `wanted` tokens that has the engine to itself."""
    sample = await measure_batch(subject, prompts, 1, tokens, wanted=wanted, spare=LEAST_SPARE)
    assert sample is not None, "one stream is always whole"  # noqa: S101 - invariant
    return sample.interval_s


async def measure_batch(
    subject: Subject, prompts: Prompts, requests: int, tokens: int, *, wanted: int, spare: int
) -> DecodeSample | None:
    """Time a batch of streams while all of them decode, for `wanted` tokens of each.

    `spare` is how many tokens the first stream may get before the last prefill is done: None if
    that was not enough, and the streams never were all there at one time. They are closed when
    the batch was seen for long enough.
    """
    cohort = Cohort(requests=requests, prompt_tokens=tokens, wanted=wanted)
    bodies = [
        prompts.body(tokens, output_tokens=wanted + spare, stream=True) for _ in range(requests)
    ]
    subject.sent(requests * tokens)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for number, body in enumerate(bodies):
                nursery.start_soon(_run_one, subject, body, cohort, number, nursery.cancel_scope)

    await _within_request(subject, run, f"decoding {requests} prompts of {tokens} tokens")
    return cohort.sample() if cohort.complete else None


async def measure_handoff(
    subject: Subject, producer: Subject, prompts: Prompts, tokens: int
) -> HandoffSample | None:
    """Time a handoff from `producer`; None if it hands nothing over.

    That is the time from the decode request to the first token, less an interval.
    """
    request = prompts.request(tokens, output_tokens=HANDOFF_TOKENS)
    held = HeldHandoff(subject.client, subject.config.model, subject.correlation)
    marks: list[tuple[int, float]] = []

    async def produce() -> None:
        reply = await _prefill(producer, vllm.prefill_body(request), on_late=held.learn_late)
        held.learn(reply)

    async def decode() -> None:
        assert held.handoff is not None, "checked by the caller"  # noqa: S101 - invariant
        body = vllm.decode_body(request, held.handoff)
        await _stream(subject, body, lambda *mark: marks.append(mark), before_write=held.pulled)

    producer.sent(tokens)
    try:
        await _within_prefill(producer, produce, tokens)
        if held.handoff is None:
            return None
        subject.sent(tokens)
        await _within_request(subject, decode, f"decoding a handoff of {tokens} tokens")
    finally:
        await held.release()
    first, interval = first_and_interval(marks)
    seconds = max(_LEAST_HANDOFF_S, first - held.written_at - interval)
    return HandoffSample(tokens=tokens, seconds=seconds)


async def _prefill(
    subject: Subject,
    body: bytes,
    *,
    on_late: Callable[[PrefillReply], None] = lambda _reply: None,
) -> PrefillReply:
    return await subject.client.prefill(
        Route.COMPLETIONS,
        body,
        subject.correlation(),
        on_answer=lambda _at: None,
        on_late=on_late,
    )


async def _run_one(
    subject: Subject, body: bytes, cohort: Cohort, number: int, scope: trio.CancelScope
) -> None:
    def note(tokens: int, now: float) -> None:
        cohort.token(number, tokens, now)
        if cohort.complete:
            scope.cancel(reason="the batch was seen for long enough")

    await _stream(subject, body, note)
    cohort.ended()
    scope.cancel(reason="the batch is not whole any more")


async def _stream(
    subject: Subject,
    body: bytes,
    on_tokens: OnTokens,
    *,
    before_write: Callable[[], None] = lambda: None,
) -> None:
    """Run a decode leg to its end, and say after each read how many tokens there are."""
    leg = await subject.client.dispatch_decode(
        Route.COMPLETIONS,
        body,
        subject.correlation(),
        on_slot=lambda: None,
        before_write=before_write,
    )
    stream = DecodeStream(
        route=Route.COMPLETIONS,
        strip_usage=False,
        max_held=subject.config.serving.max_response_bytes,
    )
    told = 0
    with leg:
        await leg.head()
        while not stream.done and (data := await leg.read()):
            stream.feed(data)
            if stream.error is not None:
                break
            if stream.tokens > told:
                told = stream.tokens
                on_tokens(told, trio.current_time())
    stream.finish()


async def _within_prefill(subject: Subject, call: Callable[[], Awaitable[T]], tokens: int) -> T:
    return await subject.ask(
        call,
        within=subject.config.serving.prefill_timeout_s,
        setting="serving.prefill_timeout_s",
        what=f"a prefill of {tokens} tokens",
    )


async def _within_request(subject: Subject, call: Callable[[], Awaitable[T]], what: str) -> T:
    return await subject.ask(
        call,
        within=subject.config.serving.request_timeout_s,
        setting="serving.request_timeout_s",
        what=what,
    )
