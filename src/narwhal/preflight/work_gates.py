"""Gates that take a little work of one engine: pace, and counting tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narwhal.config.bounds import number
from narwhal.engine import text_request
from narwhal.preflight.agreement import odd_ones
from narwhal.preflight.asking import Bound, Trouble, ask
from narwhal.preflight.engine_gates import health_bound
from narwhal.preflight.gates import Gate
from narwhal.wire import vllm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from narwhal.config import FleetConfig
    from narwhal.engine import Gauges
    from narwhal.preflight.gates import About, Finding
    from narwhal.preflight.legs import Answer, Legs
    from narwhal.preflight.view import View
    from narwhal.profiles import Profile

# Words, digits, code, and characters of two, three and four bytes.
_TEXT = "Tide table, 17 May: high water 06:42. if x > 0: return [x] * 2  Grüße, 潮汐, 🚢🚢"
# `created` is in whole seconds, and a leg takes a part of one.
_CLOCK_S = 5.0
_NOT_DRAINED = "measured beside other work: drain it for a true figure"


async def pace(
    config: FleetConfig,
    view: View,
    legs: Legs,
    profile: Profile | None,
    *,
    wall_clock: Callable[[], float],
) -> Iterable[Finding]:
    """What `/metrics` has, how right the clock is, and how fast the engine is.

    `wall_clock` tells the Unix time of this machine.
    """
    about = view.at(Gate.PACE)
    gauges = await ask(view.client.gauges, health_bound(config), "/metrics")
    if isinstance(gauges, Trouble):
        expected = "/metrics in the Prometheus format"
        return [about.failed(gauges.text, expected, "its process and its memory are read there")]
    answer = await legs.decode(view.client, legs.request())
    if isinstance(answer, Trouble):
        return [about.failed(answer.text, "a plain answer", "look into the engine's log")]
    findings = [*_metrics(gauges, about), *_clock(view, answer, wall_clock(), about)]
    return [*findings, _speed(config, profile, answer, gauges, about)]


def _metrics(gauges: Gauges, about: About) -> Iterator[Finding]:
    missing = [
        name
        for name, value in (
            ("vllm:num_requests_running", gauges.running),
            ("vllm:num_requests_waiting", gauges.waiting),
            ("vllm:prompt_tokens_total", gauges.prompt_tokens),
        )
        if value is None
    ]
    if missing:
        yield about.warned(
            f"/metrics lacks {', '.join(missing)}",
            "what is read there of an engine's work",
            "use a version that has them; without, foreign work is not seen",
        )


def _clock(view: View, answer: Answer, unix_now: float, about: About) -> Iterator[Finding]:
    told = answer.created
    off = 0.0 if told is None else told - unix_now
    started = view.process.start_s if view.process is not None else None
    if started is not None and started - unix_now > _CLOCK_S:
        off = max(off, started - unix_now)
    if abs(off) > _CLOCK_S:
        yield about.warned(
            f"its clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} this machine's",
            f"clocks within {_CLOCK_S:g} s",
            "set the clock (NTP): journals and logs of both are read side by side",
            clock_off_s=off,
        )


def _speed(
    config: FleetConfig, profile: Profile | None, answer: Answer, gauges: Gauges, about: About
) -> Finding:
    first, interval = answer.first_token_s, answer.interval_s
    figures = {"first_token_s": first} | ({} if interval is None else {"interval_s": interval})
    seen = f"first token after {first:.3g} s" + (
        "" if interval is None else f", then {interval:.3g} s a token"
    )
    if gauges.running or gauges.waiting:
        seen += (
            f"; {gauges.running or 0} requests run and {gauges.waiting or 0} wait: {_NOT_DRAINED}"
        )
        return about.passed(seen, "", **figures)
    if profile is None or interval is None or answer.prompt_tokens is None:
        return about.passed(seen, "", **figures)
    band = config.recovery.health.drift_band
    usual = profile.decode_interval(1, answer.prompt_tokens)
    expected = (
        f"its profile says {profile.prefill_seconds(answer.prompt_tokens):.3g} s, then "
        f"{usual:.3g} s a token; at most {number(band)} times that (recovery.health.drift_band)"
    )
    if interval > band * usual:
        advice = "it would be put on probation: find out what slows it, or measure it again"
        return about.warned(seen, expected, advice, **figures)
    return about.passed(seen, expected, **figures)


async def tokenize(config: FleetConfig, view: View) -> Finding:
    """Whether it counts tokens in time."""
    about = view.at(Gate.TOKENIZE)
    if not config.engine.tokenize:
        return about.skipped("engine.tokenize is false: characters are counted")
    body = vllm.tokenize_body(text_request(config.model, _TEXT))
    bound = Bound(config.engine.tokenize_timeout_s, "engine.tokenize_timeout_s")
    counted = await ask(lambda: view.client.token_ids(body), bound, "/tokenize")
    if isinstance(counted, Trouble):
        return about.failed(
            counted.text,
            "the tokens of a text",
            "serve /tokenize, raise engine.tokenize_timeout_s, or set engine.tokenize to false: "
            "characters are counted then",
        )
    view.tokens = counted.tokens
    return about.passed(f"{len(counted.tokens)} tokens for {len(_TEXT)} characters")


def tokenizers(views: Sequence[View]) -> Iterator[Finding]:
    """Engines that make other tokens of one text: their KV cache is of another prompt."""
    by_iid = {view.iid: view for view in views}
    said = {iid: view.tokens for iid, view in by_iid.items() if view.tokens is not None}
    for iid, (tokens, usual) in odd_ones(said).items():
        about = by_iid[iid].at(Gate.TOKENIZE)
        yield about.failed(
            f"other tokens than the others: {len(tokens)} where they have {len(usual)}",
            "the same tokens everywhere",
            "start all engines with one model and one tokenizer: a decoder that is handed another "
            "prompt answers wrong tokens, or dies",
        )
