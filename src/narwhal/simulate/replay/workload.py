"""From traces to the one workload of a replay: everything that can be asked for, and its making.

`shape(traces, Shape(...))` is all there is to it. The same arguments give the same arrivals.
"""

import random
from collections.abc import Mapping, Sequence

import attrs

from narwhal.config.bounds import NOT_NEGATIVE, POSITIVE, at_least
from narwhal.config.settings import about, checked, shown
from narwhal.model import ConfigError
from narwhal.simulate.replay.arrivals import Arrival
from narwhal.simulate.replay.pacing import (
    between,
    gaps_of,
    mean_rate,
    merged,
    paced,
    phase,
    with_burst,
)

PHASE_S = 100.0
SMOOTH = 101
"""Neighbours that take away the minutes and leave the seconds, at some requests per second."""


@attrs.frozen(kw_only=True, field_transformer=checked)
class Burst:
    """For a while there is more, or less, than the traces say."""

    at: float = attrs.field(metadata=about("When it begins.", unit="s", bounds=NOT_NEGATIVE))
    seconds: float = attrs.field(metadata=about("How long.", unit="s", bounds=POSITIVE))
    factor: float = attrs.field(metadata=about("How many times as much.", bounds=NOT_NEGATIVE))


@attrs.frozen(kw_only=True, field_transformer=checked)
class Giant:
    """One request more, of any size, of the kind `giant`."""

    at: float = attrs.field(metadata=about("When it comes.", unit="s", bounds=NOT_NEGATIVE))
    prompt: int = attrs.field(metadata=about("Prompt tokens.", bounds=at_least(1)))
    output: int = attrs.field(default=16, metadata=about("Output tokens.", bounds=at_least(1)))


@attrs.frozen(kw_only=True, field_transformer=checked)
class Shape:
    """What is made of the traces. Without anything, they are all replayed at once, as they are.

    A value out of its bounds raises `ConfigError`.
    """

    scale: float = attrs.field(
        default=1.0, metadata=about("Times as many requests per second.", bounds=POSITIVE)
    )
    """1.5 has the requests of an hour come in 40 minutes; in phases, half as many again come."""
    rates: Mapping[str, float] = attrs.field(
        factory=dict,
        hash=False,
        metadata=about("Mean rate of a trace, before `scale`.", unit="requests/s"),
    )
    """By the name of the trace; one that is not named keeps its own mean rate."""
    start_s: float = attrs.field(
        default=0.0, metadata=about("Where traces begin.", unit="s", bounds=NOT_NEGATIVE)
    )
    """Of each trace's own time. What came before is dropped before anything else is done."""
    seconds: float | None = attrs.field(
        default=None, metadata=about("How much of each trace.", unit="s", bounds=POSITIVE)
    )
    """`None` is all of it."""
    smooth: int = attrs.field(
        default=0, metadata=about("Neighbours that gaps are smoothed over.", bounds=NOT_NEGATIVE)
    )
    """0 leaves gaps as they are; see `gaps_of`."""
    phases: tuple[str, ...] = attrs.field(default=(), metadata=about("Traces in turn."))
    """Names of traces, one for each phase; empty replays all traces at once."""
    phase_s: float = attrs.field(
        default=PHASE_S, metadata=about("Length of a phase.", unit="s", bounds=POSITIVE)
    )
    seed: int = attrs.field(
        default=0, metadata=about("Chooses slices of traces.", bounds=NOT_NEGATIVE)
    )
    """Phases of another seed take other requests of the same traces. It also draws bursts."""
    skip: int = attrs.field(
        default=200, metadata=about("Request that phase 0 begins with.", bounds=NOT_NEGATIVE)
    )
    skip_phase: int = attrs.field(
        default=2000, metadata=about("Requests further for each phase.", bounds=NOT_NEGATIVE)
    )
    skip_seed: int = attrs.field(
        default=911, metadata=about("Requests further for each seed.", bounds=NOT_NEGATIVE)
    )
    bursts: tuple[Burst, ...] = attrs.field(default=(), metadata=about("Times of more or less."))
    giants: tuple[Giant, ...] = attrs.field(default=(), metadata=about("Single requests."))
    limit: int | None = attrs.field(
        default=None, metadata=about("Most requests, from the first on.", bounds=at_least(1))
    )

    def __attrs_post_init__(self) -> None:
        for name, rate in self.rates.items():
            if not 0 < rate < float("inf"):
                raise ConfigError(
                    [f"Shape.rates[{shown(name)}] must be positive requests/s, not {shown(rate)}"]
                )


def shape(traces: Mapping[str, Sequence[Arrival]], shape: Shape) -> tuple[Arrival, ...]:
    """The workload: in the order of time, each of the kind that its trace is named.

    Raises `ConfigError` if it names a trace that there is none of, if a phase has no rate, or if
    nothing is left.
    """
    _check_names(traces, shape)
    cut = {
        name: tuple(
            attrs.evolve(each, kind=name) for each in between(trace, shape.start_s, shape.seconds)
        )
        for name, trace in traces.items()
    }
    for name, trace in cut.items():
        if not trace:
            raise ConfigError([_empty(name, shape, traces[name])])
    arrivals = _in_phases(cut, shape) if shape.phases else _at_once(cut, shape)
    rng = random.Random(f"bursts {shape.seed}")
    for burst in shape.bursts:
        arrivals = with_burst(
            arrivals, start=burst.at, seconds=burst.seconds, factor=burst.factor, rng=rng
        )
    arrivals = merged([arrivals, *([_giant(giant)] for giant in shape.giants)])[: shape.limit]
    if not arrivals:
        raise ConfigError(["no request is left of the traces: give Shape.bursts a higher factor"])
    return arrivals


def _check_names(traces: Mapping[str, object], shape: Shape) -> None:
    known = ", ".join(map(shown, traces)) or "none at all"
    for setting, names in (("phases", shape.phases), ("rates", shape.rates)):
        for name in names:
            if name not in traces:
                raise ConfigError(
                    [f"Shape.{setting} names a trace {shown(name)}, and there are: {known}"]
                )
    if not traces:
        raise ConfigError(["there is no trace to replay: give one at least"])


def _empty(name: str, shape: Shape, trace: Sequence[Arrival]) -> str:
    slot = f"from {shape.start_s:g} s on"
    if shape.seconds is not None:
        slot += f" for {shape.seconds:g} s"
    ends = f"it ends at {trace[-1].at:g} s" if trace else "it has no request at all"
    return f"trace {shown(name)} is empty {slot}, {ends}: change start_s or seconds"


def _at_once(traces: Mapping[str, Sequence[Arrival]], shape: Shape) -> tuple[Arrival, ...]:
    return merged(
        paced(trace, rate=shape.rates.get(name), scale=shape.scale, smooth=shape.smooth)
        for name, trace in traces.items()
    )


def _in_phases(traces: Mapping[str, Sequence[Arrival]], shape: Shape) -> tuple[Arrival, ...]:
    gaps = {name: gaps_of(traces[name], smooth=shape.smooth) for name in set(shape.phases)}
    rates = {name: _rate(name, traces[name], shape) for name in set(shape.phases)}
    arrivals: list[Arrival] = []
    for index, name in enumerate(shape.phases):
        arrivals += phase(
            traces[name],
            gaps[name],
            rate=rates[name],
            seconds=shape.phase_s,
            skip=shape.skip + shape.skip_phase * index + shape.skip_seed * shape.seed,
            start=index * shape.phase_s,
        )
    return tuple(arrivals)


def _rate(name: str, trace: Sequence[Arrival], shape: Shape) -> float:
    rate = shape.rates.get(name, mean_rate(trace))
    if rate is None:
        raise ConfigError(
            [f"trace {shown(name)} takes no time, so it has no rate: give it one in Shape.rates"]
        )
    return shape.scale * rate


def _giant(giant: Giant) -> Arrival:
    return Arrival(at=giant.at, prompt=giant.prompt, output=giant.output, kind="giant")
