"""What is replayed: a fleet, what its engines really do, what the router believes, and demand."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs
from attrs import validators

from narwhal.emulator import TimeModel
from narwhal.simulate.incidents import Incident, IncidentKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from narwhal.config import FleetConfig
    from narwhal.profiles import Profile
    from narwhal.simulate.replay.arrivals import Arrival

STREAM_EVERY = 16
"""Decode steps after which an engine writes to its streams: most of the work is in the writes."""
# What real engines of this size allow; a profile says nothing of either.
_MOST_SEQUENCES = 1024
_MODEL_LEN = 1 << 20


# Copies, which pickle whatever kind of mapping and sequence was given.
def _profiles(given: Mapping[str, Profile]) -> dict[str, Profile]:
    return dict(given)


def _arrivals(given: Iterable[Arrival]) -> tuple[Arrival, ...]:
    return tuple(given)


@attrs.frozen(kw_only=True)
class Replay:
    """One replay. Two that are equal give equal results, but for the time they took."""

    config: FleetConfig
    """The fleet file's value; its targets are what requests are judged by."""
    truth: Mapping[str, Profile] = attrs.field(converter=_profiles)
    """How fast each engine is, by name."""
    believed: Mapping[str, Profile] | None = attrs.field(
        default=None, converter=attrs.converters.optional(_profiles)
    )
    """What the router is told of them; None: the truth."""
    arrivals: tuple[Arrival, ...] = attrs.field(converter=_arrivals)
    """In the order of time."""
    seed: int = 0
    arm: str = "as configured"
    """What the result is called."""
    chunk_tokens: int | None = 512
    """Prompt tokens that share one decode step where both phases meet on an engine; None: neither
    slows the other."""
    sample_s: float = attrs.field(default=1.0, validator=validators.gt(0))
    """Virtual seconds between two looks at the fleet."""
    generosity: float = attrs.field(default=1.0, validator=validators.ge(1))
    """What clients ask for as `max_tokens`, over what they get, where the trace does not say."""
    ttft_s: float | None = None
    """The target that first tokens are judged by, if it is not the fleet's `slo.ttft_s`."""
    incidents: tuple[Incident, ...] = ()
    """What happens to engines, and when: seconds since the replay began."""
    stream_every: int = attrs.field(default=STREAM_EVERY, validator=validators.ge(1))
    """Decode steps after which an engine writes to its streams, beside first and last tokens:
    these are what requests are judged by."""

    def __attrs_post_init__(self) -> None:
        """Refuse what could not be run, by the name of what is wrong."""
        iids = [spec.iid for spec in self.config.engines]
        for name, profiles in (("truth", self.truth), ("believed", self.told)):
            missing = [iid for iid in iids if iid not in profiles]
            if missing:
                raise ValueError(f"{name}: there is no profile for engine {missing[0]}; add one")
        for before, after in pairwise(self.arrivals):
            if after.at < before.at:
                raise ValueError(
                    f"arrivals: one at {after.at:g} s comes after one at {before.at:g} s; sort "
                    "them by time"
                )
        for incident in self.incidents:
            if incident.engine not in iids:
                raise ValueError(
                    f"incidents: there is no engine {incident.engine}; the fleet has "
                    f"{', '.join(iids)}"
                )
            if incident.kind is IncidentKind.VANISH:
                raise ValueError(
                    "incidents: a replay has no network that could vanish; choose another kind "
                    "than `vanish`, such as `refuse`"
                )

    @property
    def told(self) -> Mapping[str, Profile]:
        """The profiles that the router has."""
        return self.truth if self.believed is None else self.believed

    def engine_settings(self) -> dict[str, dict[str, Any]]:
        """What the emulated engines are told about themselves, by name."""
        return {
            spec.iid: _settings(self.truth[spec.iid], self.chunk_tokens, self.stream_every)
            for spec in self.config.engines
        }


def _settings(profile: Profile, chunk_tokens: int | None, stream_every: int) -> dict[str, Any]:
    prefill, decode, handoff = profile.prefill, profile.decode, profile.handoff
    capacity = profile.kv_capacity_tokens
    return {
        "time": TimeModel(
            prefill=(prefill.a, prefill.b, prefill.c),
            decode=(decode.t0, decode.tr, decode.tk),
            handoff=(0.0, 0.0) if handoff is None else (handoff.base_s, handoff.token_s),
            chunk_tokens=chunk_tokens,
        ),
        "length_in_prompt": True,
        "stream_every": stream_every,
        "kv_capacity_tokens": capacity,
        "max_model_len": _MODEL_LEN if capacity is None else min(_MODEL_LEN, capacity),
        "max_num_seqs": _MOST_SEQUENCES,
    }
