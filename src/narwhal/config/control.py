"""The section `controller`: when engines change roles."""

from enum import StrEnum

import attrs

from narwhal.config.bounds import (
    FRACTION_NOT_ONE,
    FRACTION_NOT_ZERO,
    NOT_NEGATIVE,
    POSITIVE,
    at_least,
    zero_or_at_least,
)
from narwhal.config.settings import about, checked


class Preset(StrEnum):
    """A set of defaults for the section; see `narwhal.config.presets`."""

    REFERENCE = "reference"
    RESPONSIVE = "responsive"


class SourceGuard(StrEnum):
    """What keeps the pool that gives an engine away from giving too much."""

    ABSOLUTE = "absolute"
    """Its projected load stays at or below `thresholds.shrink`."""
    RELATIVE = "relative"
    """Its projected ratio stays below its target, and the worse of both falls by the margin."""


class ResidentSignal(StrEnum):
    """How decodes that are there already count beside those that demand will bring."""

    ADDED = "added"
    """On top of them."""
    LARGER = "larger"
    """Whichever is more: decodes that are there are part of the flow that demand describes."""


@attrs.frozen(kw_only=True, field_transformer=checked)
class Thresholds:
    """Loads (1 is a target just met) and times between which roles stay as they are."""

    expand: float = attrs.field(
        default=1.0,
        metadata=about(
            "Load of a pool, relative to its target, from which it asks for another engine.",
            unit="ratio",
            bounds=POSITIVE,
        ),
    )
    shrink: float = attrs.field(
        default=0.5,
        metadata=about(
            "Load that a pool may be projected to have after giving an engine away; only the "
            "mixed-pressure rule, decode to prefill, may go beyond it.",
            unit="ratio",
            bounds=NOT_NEGATIVE,
        ),
    )
    cooldown_s: float = attrs.field(
        default=10.0,
        metadata=about(
            "Shortest time between two moves from prefill to decode.",
            unit="s",
            bounds=NOT_NEGATIVE,
        ),
    )
    sustained_intervals: int = attrs.field(
        default=3,
        metadata=about(
            "Times that a proposal must be confirmed if it is not urgent, rests on incomplete "
            "demand, or comes from mixed pressure.",
            unit="evaluations",
            bounds=at_least(1),
        ),
    )
    dwell_s: float = attrs.field(
        default=0.0,
        metadata=about(
            "Shortest stay of an engine in a role it was moved to.", unit="s", bounds=NOT_NEGATIVE
        ),
    )
    panic_ratio: float = attrs.field(
        default=0.0,
        metadata=about(
            "Decode load from which the cooldown may be skipped while prefill is below "
            "`shrink`; `0` switches this off.",
            unit="ratio",
            bounds=zero_or_at_least(1),
        ),
    )
    flip_resident_guard: int = attrs.field(
        default=0,
        metadata=about(
            "Most decode streams that an engine may be running when it is moved to prefill; `0` "
            "switches this off.",
            unit="streams",
            bounds=NOT_NEGATIVE,
        ),
    )


@attrs.frozen(kw_only=True, field_transformer=checked)
class Reactive:
    """How demand is estimated, and what evidence a move needs."""

    window_s: float = attrs.field(
        default=120.0,
        metadata=about(
            "Length of the window over which demand is estimated.", unit="s", bounds=POSITIVE
        ),
    )
    confirmations: int = attrs.field(
        default=2,
        metadata=about(
            "Identical proposals in a row that such a move needs; the larger of this and "
            "`thresholds.sustained_intervals` counts.",
            unit="evaluations",
            bounds=at_least(1),
        ),
    )
    utilization: float = attrs.field(
        default=0.8,
        metadata=about(
            "Share of an engine that counts as usable capacity.",
            unit="fraction",
            bounds=FRACTION_NOT_ZERO,
        ),
    )
    min_arrivals: int = attrs.field(
        default=10,
        metadata=about(
            "Arrivals in the window without which nothing is decided.",
            unit="requests",
            bounds=at_least(1),
        ),
    )
    demand_floor: float = attrs.field(
        default=0.5,
        metadata=about("Weakest demand that is taken for a signal.", bounds=POSITIVE),
    )
    movement_margin: float = attrs.field(
        default=0.05,
        metadata=about(
            "By how much a move must lower the worst projected ratio to a target; at `0` any "
            "improvement will do, but there must be one.",
            unit="fraction",
            bounds=FRACTION_NOT_ONE,
        ),
    )
    noise_margin: float = attrs.field(
        default=0.0,
        metadata=about(
            "What demand may be off by chance, as a multiple of one over the square root of the "
            "arrivals in the window: a move has to be right even if it is; `0` switches this off.",
            bounds=NOT_NEGATIVE,
        ),
    )
    step_s: float = attrs.field(
        default=5.0,
        metadata=about(
            "Shortest time between two scheduled evaluations; a projected breach of the TTFT "
            "target may cause one guarded evaluation, decode to prefill, in between.",
            unit="s",
            bounds=POSITIVE,
        ),
    )
    source_guard: SourceGuard = attrs.field(
        default=SourceGuard.ABSOLUTE,
        metadata=about(
            "What the pool that gives an engine away must keep to: `absolute`, a projected load of "
            "at most `thresholds.shrink`; `relative`, a ratio below its own target, which the "
            "move may bring it closer to as long as the worse of both falls by the margin."
        ),
    )
    resident_signal: ResidentSignal = attrs.field(
        default=ResidentSignal.ADDED,
        metadata=about(
            "How decodes in progress count when a split is priced: `added` to those that demand "
            "will bring, or `larger`, whichever of the two is more."
        ),
    )
    content_below: float = attrs.field(
        default=0.0,
        metadata=about(
            "Worst projected ratio below which roles stay as they are, whatever another split "
            "would make of it; `0` switches this off.",
            unit="ratio",
            bounds=NOT_NEGATIVE,
        ),
    )
    urgent: bool = attrs.field(
        default=False,
        metadata=about(
            "Whether a move needs no confirmation while one side is projected at its `expand` or "
            "beyond and the other stays below its target."
        ),
    )
    evidence_span_s: float = attrs.field(
        default=60.0,
        metadata=about(
            "Time over which arrivals must have been seen before decode gives an engine away, "
            "and the short horizon when demand is tested for a rise.",
            unit="s",
            bounds=POSITIVE,
        ),
    )
    evidence_max_span_s: float = attrs.field(
        default=120.0,
        metadata=about(
            "Time after which sparse traffic has to do as evidence.", unit="s", bounds=POSITIVE
        ),
    )
    evidence_min_arrivals: int = attrs.field(
        default=10,
        metadata=about(
            "Arrivals that the evidence span must hold before decode gives an engine away.",
            unit="requests",
            bounds=at_least(1),
        ),
    )
    demand_rise_tolerance: float = attrs.field(
        default=0.25,
        metadata=about(
            "How far decode demand over the short horizon may lie above the long one, as a share "
            "of it, before decode keeps its engines.",
            unit="fraction",
            bounds=NOT_NEGATIVE,
        ),
    )
    decode_correction_min: float = attrs.field(
        default=0.5,
        metadata=about(
            "Least factor by which live measurements may correct a decode profile.",
            unit="ratio",
            bounds=POSITIVE,
        ),
    )
    decode_correction_max: float = attrs.field(
        default=2.0,
        metadata=about(
            "Greatest factor by which live measurements may correct a decode profile.",
            unit="ratio",
            bounds=POSITIVE,
        ),
    )
    decode_correction_alpha: float = attrs.field(
        default=0.2,
        metadata=about(
            "Weight of one window's observation in the correction.",
            unit="fraction",
            bounds=FRACTION_NOT_ZERO,
        ),
    )
    decode_correction_min_samples: int = attrs.field(
        default=8,
        metadata=about(
            "Gaps between tokens that a window needs to change the correction.",
            unit="samples",
            bounds=at_least(1),
        ),
    )


@attrs.frozen(kw_only=True, field_transformer=checked)
class Controller:
    """The monitor's pace and the limits within which roles move."""

    preset: Preset = attrs.field(
        default=Preset.REFERENCE,
        metadata=about(
            "Where the defaults of this section come from: `reference`, as written here, or "
            "`responsive`, for demand whose mix shifts within minutes. What a file gives itself "
            "comes before either."
        ),
    )
    advisory: bool = attrs.field(
        default=False,
        metadata=about(
            "Whether moves are only proposed and recorded, with their reasons, and never made."
        ),
    )
    monitor_interval_s: float = attrs.field(
        default=1.0,
        metadata=about("Pause between two monitor passes.", unit="s", bounds=POSITIVE),
    )
    monitor_failure_limit: int = attrs.field(
        default=5,
        metadata=about(
            "Monitor passes in a row in which some stage failed, after which the router counts "
            "as degraded and admits nothing new.",
            unit="passes",
            bounds=at_least(1),
        ),
    )
    min_prefill: int = attrs.field(
        default=1,
        metadata=about(
            "Live prefill engines that no move may go below.", unit="engines", bounds=at_least(1)
        ),
    )
    min_decode: int = attrs.field(
        default=1,
        metadata=about(
            "Live decode engines that no move may go below.", unit="engines", bounds=at_least(1)
        ),
    )
    flip_history: int = attrs.field(
        default=1000,
        metadata=about(
            "Role changes that are remembered and shown in `/narwhal/state`.",
            unit="records",
            bounds=at_least(1),
        ),
    )
    thresholds: Thresholds = attrs.field(
        factory=Thresholds, metadata=about("When a pool asks for an engine or can spare one.")
    )
    reactive: Reactive = attrs.field(
        factory=Reactive, metadata=about("Demand, evidence and the correction of profiles.")
    )
