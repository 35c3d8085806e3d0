"""Small fleets with round numbers for the tests of replays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from narwhal.profiles import DecodeCurve, HandoffCurve, PrefillCurve, Profile, Range
from narwhal.simulate.replay.arrivals import Arrival
from narwhal.simulate.replay.replay import Replay
from narwhal.testing import fleet_config

if TYPE_CHECKING:
    from narwhal.config import FleetConfig

_FAR = Range(1, 10_000_000)


def profile(
    *,
    token: float = 0.001,
    step: float = 0.01,
    each: float = 0.0,
    handoff: float = 0.0,
    capacity: int | None = None,
) -> Profile:
    """`token` seconds a prompt token, and steps of `step` seconds plus `each` for a request."""
    return Profile(
        prefill=PrefillCurve(a=0.0, b=token, c=0.0, tokens=_FAR, fit_mape=0.0, cv_mape=0.0),
        decode=DecodeCurve(
            t0=step, tr=each, tk=1e-12, requests=_FAR, kv_tokens=_FAR, fit_mape=0.0, cv_mape=0.0
        ),
        handoff=HandoffCurve(base_s=handoff, token_s=0.0) if handoff else None,
        kv_capacity_tokens=capacity,
    )


def fleet(prefill: int = 1, decode: int = 1, **sections: Any) -> FleetConfig:
    """Predictive admission; TTFT within a second and TPOT within 50 ms."""
    return fleet_config(
        prefill=prefill,
        decode=decode,
        **{
            "slo": {"ttft_s": 1.0, "tpot_s": 0.05},
            "serving": {"admission": "predictive"},
            **sections,
        },
    )


def steady(count: int, *, every_s: float, prompt: int = 100, output: int = 5) -> list[Arrival]:
    """Requests that are all alike, at regular times."""
    return [Arrival(at=place * every_s, prompt=prompt, output=output) for place in range(count)]


def replay(config: FleetConfig, arrivals: list[Arrival], **changes: Any) -> Replay:
    """With every engine as `profile()` says, unless told otherwise."""
    given = {"truth": {spec.iid: profile() for spec in config.engines}, **changes}
    return Replay(config=config, arrivals=tuple(arrivals), **given)
