"""The state document as values, as far as `top` shows it.

Lenient: what a router of another version does not say has a default, and what it says besides is
not looked at.
"""

from __future__ import annotations

import msgspec

_Counts = dict[str, int]
_Numbers = dict[str, float | None]


class Requests(msgspec.Struct, frozen=True):
    """Of clients."""

    received: int = 0
    in_flight: int = 0
    waiting: int = 0
    retained: int = 0
    terminals: _Counts = {}


class Attempts(msgspec.Struct, frozen=True):
    """At requests."""

    total: int = 0
    retries: int = 0
    retry_credits: float = 0.0


class Tokens(msgspec.Struct, frozen=True):
    """Since the start."""

    prompt: int = 0
    completion: int = 0


class Slo(msgspec.Struct, frozen=True):
    """The targets."""

    ttft_s: float = 0.0
    tpot_s: float = 0.0
    ttft_scope: str = "prefill"


class Decision(msgspec.Struct, frozen=True):
    """The last evaluation of role control."""

    ago_s: float = 0.0
    verdict: str = ""
    rule: str = ""
    gate: str = ""
    split: str = ""
    proposed: str | None = None
    confirmations: int = 0
    needed: int = 0
    loads: _Numbers = {}
    reason: str = ""


class Flip(msgspec.Struct, frozen=True):
    """An engine that changed its role."""

    ago_s: float = 0.0
    iid: str = ""
    to: str = ""
    rule: str = ""
    split: str = ""


class Roles(msgspec.Struct, frozen=True):
    """Role control."""

    preset: str = ""
    advisory: bool = False
    decision: Decision | None = None
    proposal: Decision | None = None
    flips: tuple[Flip, ...] = ()


class Engine(msgspec.Struct, frozen=True):
    """One engine."""

    iid: str
    role: str = ""
    pin: bool = False
    state: str = ""
    state_s: float | None = None
    reason: str = ""
    suspicion: str = "trusted"
    seat_limit: _Counts = {}
    residents: _Counts = {}
    reserved_tokens: int = 0
    backlog_s: float = 0.0
    pace: _Numbers = {}


class Outcome(msgspec.Struct, frozen=True):
    """How a request ended."""

    terminal: str = ""
    prefill_ttft_s: float | None = None
    first_token_ttft_s: float | None = None
    tpot_s: float | None = None
    queue_s: float | None = None


class State(msgspec.Struct, frozen=True):
    """The router, at one moment."""

    version: str
    uptime_s: float
    ready: bool
    engines: tuple[Engine, ...]
    model: str = ""
    draining: bool = False
    alerts: tuple[str, ...] = ()
    slo: Slo = Slo()
    requests: Requests = Requests()
    limits_fired: _Counts = {}
    attempts: Attempts = Attempts()
    tokens: Tokens = Tokens()
    roles: Roles | None = None
    recent: tuple[Outcome, ...] = ()


_decoder = msgspec.json.Decoder(State)


def parse_state(body: bytes) -> State:
    """The document. Raises `ValueError` for what is none."""
    return _decoder.decode(body)
