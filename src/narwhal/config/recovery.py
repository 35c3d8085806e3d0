"""The sections `recovery` and `profiles`: what is believed of engines, and for how long."""

from enum import StrEnum

import attrs

from narwhal.config.bounds import NOT_NEGATIVE, POSITIVE, above, at_least
from narwhal.config.settings import about, checked
from narwhal.config.texts import FilePath


class RestartPolicy(StrEnum):
    """Which engines have to prove themselves again when one of them restarted."""

    INDIVIDUAL = "individual"
    """The one that restarted."""
    WHOLE_WAVE = "whole_wave"
    """All of them: the fleet is restarted together and serves again together."""


@attrs.frozen(kw_only=True, field_transformer=checked)
class Health:
    """When an engine that answers, but slower than it should, loses work to the others."""

    window_s: float = attrs.field(
        default=30.0,
        metadata=about(
            "Length of the window over which an engine's speed is judged.",
            unit="s",
            bounds=POSITIVE,
        ),
    )
    drift_band: float = attrs.field(
        default=2.0,
        metadata=about(
            "How many times its own profile an engine may take before a window counts as bad.",
            unit="ratio",
            bounds=above(1),
        ),
    )
    relative_band: float = attrs.field(
        default=1.5,
        metadata=about(
            "How many times the fleet's median an engine may take before a window counts as bad; "
            "when all are slow together, none is singled out.",
            unit="ratio",
            bounds=above(1),
        ),
    )
    min_samples: int = attrs.field(
        default=3,
        metadata=about(
            "Observations that a window needs to be judged; a monitor pass adds at most one for "
            "each engine.",
            unit="samples",
            bounds=at_least(1),
        ),
    )
    probation_windows: int = attrs.field(
        default=3,
        metadata=about(
            "Bad windows in a row that put an engine on probation.",
            unit="windows",
            bounds=at_least(1),
        ),
    )
    evict_windows: int = attrs.field(
        default=5,
        metadata=about(
            "Bad windows in a row that take an engine out of service.",
            unit="windows",
            bounds=at_least(1),
        ),
    )
    recovery_windows: int = attrs.field(
        default=3,
        metadata=about(
            "Good windows in a row that end a probation.", unit="windows", bounds=at_least(1)
        ),
    )
    probation_penalty_s: float = attrs.field(
        default=1.5,
        metadata=about(
            "What is added to the price of an engine on probation, so that it is chosen last.",
            unit="s",
            bounds=NOT_NEGATIVE,
        ),
    )


@attrs.frozen(kw_only=True, field_transformer=checked)
class Recovery:
    """When an engine is taken out of service, and what brings it back."""

    eject_after: int = attrs.field(
        default=3,
        metadata=about(
            "Failures of one kind in a row after which the breaker acts on an engine.",
            unit="failures",
            bounds=at_least(1),
        ),
    )
    readmit_every: int = attrs.field(
        default=10,
        metadata=about(
            "Monitor passes between two tries to bring an ejected engine back.",
            unit="passes",
            bounds=at_least(1),
        ),
    )
    liveness_every: int = attrs.field(
        default=10,
        metadata=about(
            "Monitor passes between two liveness probes of an engine in service.",
            unit="passes",
            bounds=at_least(1),
        ),
    )
    liveness_misses: int = attrs.field(
        default=2,
        metadata=about(
            "Liveness probes missed in a row that eject an engine.",
            unit="probes",
            bounds=at_least(1),
        ),
    )
    failure_quarantine_s: float = attrs.field(
        default=0.0,
        metadata=about(
            "How long an engine that failed a leg gets no new work; `0` switches this off.",
            unit="s",
            bounds=NOT_NEGATIVE,
        ),
    )
    engine_restart_policy: RestartPolicy = attrs.field(
        default=RestartPolicy.INDIVIDUAL,
        metadata=about(
            "Whether the restart of one engine holds only that engine back until it has been "
            "verified (`individual`) or all of them (`whole_wave`)."
        ),
    )
    state_path: FilePath = attrs.field(
        default="runs/state.json",
        metadata=about(
            "File that keeps roles and holds over a restart of the router; relative to its "
            "working directory."
        ),
    )
    resume: bool = attrs.field(
        default=False,
        metadata=about("Whether the router starts from that file, or from the roles in this one."),
    )
    health: Health = attrs.field(
        factory=Health, metadata=about("Drift: engines that answer, but too slowly.")
    )


@attrs.frozen(kw_only=True, field_transformer=checked)
class Profiles:
    """Where the measured speed of the engines stands, and how well it must fit."""

    path: FilePath = attrs.field(
        default="runs/profiles.json",
        metadata=about(
            "The profile store: written by the profiler, read by the router; relative to the "
            "working directory."
        ),
    )
    max_decode_fit_mape: float = attrs.field(
        default=0.05,
        metadata=about(
            "Greatest mean error of a decode profile on the points it was fitted to.",
            unit="fraction",
            bounds=NOT_NEGATIVE,
        ),
    )
    max_decode_cv_mape: float = attrs.field(
        default=0.13,
        metadata=about(
            "Greatest mean error of a decode profile on points left out of its fit.",
            unit="fraction",
            bounds=NOT_NEGATIVE,
        ),
    )
