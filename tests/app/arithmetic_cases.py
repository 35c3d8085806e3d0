"""What the arithmetic of limits is checked on: limits, requests, and what engines do and when.

Times are in seconds. What takes time takes whole hundredths. Everything that runs beside it (each
limit, and each thing that happens at a time of its own) is off by the square root of a prime: no
sum of these equals another one, so no two things ever happen at the same moment by chance.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import Any, TypeVar

import attrs
from hypothesis import strategies as st

from narwhal.config import FleetConfig

from worlds import fleet_config

T = TypeVar("T")

NEVER = 100.0


def apart(prime: int) -> float:
    """Less than a hundredth, and like no other."""
    return sqrt(prime) % 1 / 100


@attrs.frozen(kw_only=True)
class Kind:
    """A way for a leg to end, and what the documentation says that it means."""

    code: str
    status: int = 502
    again: bool = True
    rejected: bool = False
    """The client's own mistake, in the engine's words."""


BUSY = Kind(code="engine_busy", status=503)
BROKEN = Kind(code="engine_status")
HOPELESS = Kind(code="engine_status", again=False)
MISTAKE = Kind(code="engine_rejected", status=400, again=False, rejected=True)
CLOSED = Kind(code="engine_closed")

STATUSES = {
    "408": BUSY,
    "429": BUSY,
    "503": BUSY,
    "500": BROKEN,
    "502": BROKEN,
    "504": BROKEN,
    "501": HOPELESS,
    "401": HOPELESS,
    "404": HOPELESS,
    "400": MISTAKE,
}
EITHER = STATUSES | {
    "refused": Kind(code="engine_unreachable"),
    "rst": CLOSED,
    "fin": CLOSED,
    "garbage": Kind(code="engine_protocol"),
}
PREFILL_ENDS = EITHER | {
    "no handoff": Kind(code="handoff_incomplete"),
    "half a handoff": Kind(code="handoff_incomplete"),
}
# Before the first token.
DECODE_ENDS = EITHER | {
    "nothing": Kind(code="stream_cut"),
    "cut": CLOSED,
    "error": Kind(code="stream_error"),
    "mistake": MISTAKE,
    "empty": Kind(code="stream_empty"),
    "malformed": Kind(code="stream_malformed"),
}
AFTER_A_GOOD_HEAD = ("cut", "error", "mistake", "empty", "malformed")
# After it.
STREAM_ENDS = {
    "cut": CLOSED,
    "error": Kind(code="stream_error"),
    "mistake": MISTAKE,
    "undone": Kind(code="stream_cut"),
}
GOOD = "good"


@attrs.frozen(kw_only=True)
class Leg:
    """One leg on an engine."""

    connect: float
    seconds: float
    """From the request to the answer; of a decode leg, to its first token."""
    end: str
    retry_after: int | None = None


@attrs.frozen(kw_only=True)
class Script:
    """What the engines do in one attempt."""

    prefill: Leg
    decode: Leg
    gaps: tuple[float, ...]
    """From the first token on. A token follows each but the last, which the end follows."""
    end: str


@attrs.frozen(kw_only=True)
class Request:
    """One request, and what happens around it; times are counted from its arrival."""

    stream: bool
    body: float
    """From its head to its body."""
    tokenize: float
    seat_at: float
    """Up to here the router's only seat is taken,"""
    prefill_at: float
    """the only prefill place of each engine is,"""
    decode_at: float
    """and the only decode place of each is."""
    starved_at: float
    """From here on no connection can be had for a leg."""
    leaves_at: float
    reset: bool
    scripts: tuple[Script, Script, Script]


@attrs.frozen(kw_only=True)
class Limits:
    """The settings."""

    prefill: int
    """How many engines; if none, both legs are one."""
    decode: int
    commit: str
    request_s: float
    queue_s: float
    tokenize_s: float
    prefill_s: float
    handoff_s: float
    lease_s: float
    first_s: float
    gap_s: float
    pool_s: float
    connect_s: float
    max_attempts: int
    base_s: float
    cap_s: float
    budget: int
    tenths: int
    """Of a credit, for each success."""

    @property
    def queues(self) -> bool:
        """A cap on the age of handoffs is what the configuration wants of who queues."""
        return self.handoff_s > 0

    def config(self) -> FleetConfig:
        serving: dict[str, Any] = {
            "max_connections": 1,
            "queue_capacity": int(self.queues),
            "queue_timeout_s": self.queue_s,
            "prefill_concurrency": 1,
            "decode_concurrency": 1,
            "request_timeout_s": self.request_s,
            "prefill_timeout_s": self.prefill_s,
            "handoff_timeout_s": self.handoff_s,
            "stream_commit": self.commit,
            "max_attempts": self.max_attempts,
            "retry_base_s": self.base_s,
            "retry_cap_s": self.cap_s,
            "retry_budget": self.budget,
            "retry_replenish": self.tenths / 10,
        }
        engine = {
            "tokenize_timeout_s": self.tokenize_s,
            "first_token_timeout_s": self.first_s,
            "decode_read_timeout_s": self.gap_s,
            "connect_timeout_s": self.connect_s,
            "pool_timeout_s": self.pool_s,
            "kv_lease_s": self.lease_s,
        }
        # Failures in a row, over several requests, take an engine out of service: not reckoned.
        recovery = {"eject_after": 1000}
        return fleet_config(
            prefill=self.prefill, decode=self.decode, engine=engine, recovery=recovery, **serving
        )


# A case in which nothing goes wrong; its times are powers of two and their sums: exact.
LEG = Leg(connect=0.5, seconds=0.5, end=GOOD)
SCRIPT = Script(prefill=LEG, decode=LEG, gaps=(1.0, 1.0), end=GOOD)
PLAIN = Request(
    stream=True,
    body=0.0,
    tokenize=1.0,
    seat_at=0.0,
    prefill_at=0.0,
    decode_at=0.0,
    starved_at=inf,
    leaves_at=inf,
    reset=False,
    scripts=(SCRIPT, SCRIPT, SCRIPT),
)
WIDE = Limits(
    prefill=1,
    decode=1,
    commit="before_decode",
    request_s=64.0,
    queue_s=64.0,
    tokenize_s=64.0,
    prefill_s=64.0,
    handoff_s=32.0,
    lease_s=64.0,
    first_s=64.0,
    gap_s=64.0,
    pool_s=64.0,
    connect_s=64.0,
    max_attempts=1,
    base_s=0.0,
    cap_s=0.0,
    budget=4,
    tenths=0,
)


def hundredths(least: int, most: int) -> st.SearchStrategy[float]:
    return st.integers(least, most).map(lambda n: n / 100)


TIMES = hundredths(0, 120)


def now_and_then(usual: T, other: st.SearchStrategy[T], one_in: int) -> st.SearchStrategy[T]:
    return st.integers(1, one_in).flatmap(lambda n: other if n == one_in else st.just(usual))


def limit(prime: int, one_in: int) -> st.SearchStrategy[float]:
    """Mostly one that will not fire, or no case would come far."""
    tight = hundredths(1, 150)
    return now_and_then(NEVER, tight, one_in).map(lambda seconds: seconds + apart(prime))


def moment(prime: int, usual: float, one_in: int, *, most: int) -> st.SearchStrategy[float]:
    """Something that happens beside the request; mostly it does not."""
    other = hundredths(0, most).map(lambda seconds: seconds + apart(prime))
    return now_and_then(usual, other, one_in)


@st.composite
def limits(draw: st.DrawFn, *, attempts: int = 1, tight: int = 6) -> Limits:
    """Settings with at least so many attempts; one limit in `tight` may fire."""
    attempts = draw(st.integers(attempts, 3))
    capped = attempts > 1 or draw(st.booleans())
    handoff_s = draw(limit(7, tight)) if capped else 0.0
    lease_s = draw(limit(11, tight))
    base_s = draw(hundredths(0, 200 * attempts))
    return Limits(
        prefill=draw(st.integers(0, 3)),
        decode=draw(st.integers(1, 3)),
        commit=draw(st.sampled_from(["before_decode", "first_token"])),
        request_s=draw(now_and_then(NEVER, hundredths(1, 1000), 3)) + apart(2),
        queue_s=draw(limit(31, 3)),
        tokenize_s=draw(limit(3, tight)),
        prefill_s=draw(limit(5, tight)),
        handoff_s=handoff_s,
        lease_s=handoff_s + lease_s if capped else lease_s,
        first_s=draw(limit(13, tight)),
        gap_s=draw(limit(17, tight) | st.just(0.0)),
        pool_s=draw(limit(23, 3)),
        connect_s=draw(limit(19, tight)),
        max_attempts=attempts,
        base_s=base_s,
        cap_s=base_s + draw(hundredths(0, 200)),
        budget=draw(st.integers(0, 4)),
        tenths=draw(st.integers(0, 10)),
    )


def failures(ends: dict[str, Kind]) -> st.SearchStrategy[str]:
    """Mostly one that another attempt may make good."""
    again = [name for name, kind in sorted(ends.items()) if kind.again]
    return st.sampled_from(again) | st.sampled_from(again) | st.sampled_from(sorted(ends))


@st.composite
def leg(draw: st.DrawFn, ends: dict[str, Kind], fails: int) -> Leg:
    return Leg(
        connect=draw(TIMES),
        seconds=draw(TIMES),
        end=draw(now_and_then(GOOD, failures(ends), fails)),
        retry_after=draw(st.none() | st.integers(1, 3)),
    )


@st.composite
def script(draw: st.DrawFn, fails: int) -> Script:
    gaps = draw(st.lists(TIMES, max_size=3))
    # A connection that breaks may take what it brought in the same moment with it.
    gaps.append(draw(hundredths(1, 120)))
    return Script(
        prefill=draw(leg(PREFILL_ENDS, fails + 1)),
        decode=draw(leg(DECODE_ENDS, fails)),
        gaps=tuple(gaps),
        end=draw(now_and_then(GOOD, failures(STREAM_ENDS), fails)),
    )


@st.composite
def requests(draw: st.DrawFn, *, fails: int = 4, beside: int = 5) -> Request:
    """A request; one leg in `fails` fails, and one in `beside` things happens beside it."""
    return Request(
        stream=draw(st.booleans()),
        body=draw(now_and_then(0.0, TIMES, beside)),
        tokenize=draw(hundredths(0, 30)),
        seat_at=draw(moment(29, 0.0, beside, most=200)),
        prefill_at=draw(moment(37, 0.0, beside, most=600)),
        decode_at=draw(moment(41, 0.0, beside, most=600)),
        starved_at=draw(moment(43, inf, 2 * beside, most=600)),
        leaves_at=draw(moment(47, inf, beside, most=800)),
        reset=draw(st.booleans()),
        scripts=(draw(script(fails)), draw(script(fails)), draw(script(fails))),
    )
