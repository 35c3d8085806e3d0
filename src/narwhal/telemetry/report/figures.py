"""The values that a report is made of. Times are seconds, moments Unix time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from narwhal.model import Limit, Phase, Terminal
    from narwhal.telemetry.report.lines import EngineLine, RoleLine, RouterLine
    from narwhal.telemetry.report.reading import Bad
    from narwhal.telemetry.report.wanted import Targets

MOST_WINDOWS = 10_000
"""A month by five minutes; more is a slip of the pen, and no reader looks at it."""


@attrs.frozen(kw_only=True)
class Times:
    """How long something took: of `count` times, the mean and what that many were no slower than.

    All are None if there were none.
    """

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    most: float | None = None


@attrs.frozen
class Share:
    """So many of so many."""

    part: int
    whole: int

    @property
    def fraction(self) -> float | None:
        """None of nothing."""
        return self.part / self.whole if self.whole else None


@attrs.frozen(kw_only=True)
class TerminalFigures:
    """The requests that ended in one way."""

    terminal: Terminal
    requests: int
    ttft_met: Share
    """Of those with a first token and a target."""
    tpot_met: Share
    request: Times


@attrs.frozen(kw_only=True)
class PhaseFigures:
    """Where the time went: one phase."""

    phase: Phase
    share: float
    """Of the time of all requests together."""
    seconds: float
    times: Times
    """Of the requests that were in it."""


@attrs.frozen(kw_only=True)
class EngineFigures:
    """What one engine did, attempts that failed included."""

    iid: str
    prefills: int
    decodes: int
    prefill: Times
    handoff: Times
    """Age of the handoffs that it decoded from."""
    first_token: Times
    tpot: Times
    """Of requests whose last attempt was decoded here."""
    failures: Mapping[str, int]
    """Of its legs, by class."""


@attrs.frozen(kw_only=True)
class Ending:
    """Requests that did not complete, of one kind."""

    terminal: Terminal
    code: str
    limit: Limit | None
    requests: int


@attrs.frozen(kw_only=True)
class Window:
    """The requests that came within a stretch of time, whenever they ended."""

    at: float
    """When it begins."""
    requests: int
    attained: Share
    """Of those that count."""
    ends: Mapping[Terminal, int]
    completion_tokens: int
    ttft_p50: float | None
    ttft_p99: float | None
    tpot_p50: float | None
    tpot_p99: float | None
    queue_p99: float | None


@attrs.frozen(kw_only=True)
class Figures:
    """All of it."""

    files: Sequence[str]
    lines: int
    bad: int
    bad_lines: Sequence[Bad]
    torn: int
    """Last lines that were cut off: being written, or the router was killed."""
    left_out: int
    """Requests that were not asked for."""
    dropped: int
    """Rows that the router lost before they were written, as its stop rows say."""
    starts: int
    stops: int
    models: Sequence[str]
    versions: Sequence[str]
    targets: Sequence[Targets]
    """All that were in force. Empty: nobody said any."""
    since: float | None
    """When the first request came, and the last one ended."""
    until: float | None
    requests: int
    attained: Share
    """Completed, with both times in their targets, of those that count: all but the invalid ones,
    and those whose clients left."""
    of_completed: Share
    """The same of those that completed."""
    ttft_met: Share
    tpot_met: Share
    terminals: Sequence[TerminalFigures]
    times: Mapping[str, Times]
    """`ttft` (at the client, of streams), `first_token_ttft`, `prefill_ttft`, `tpot`, `request` (of
    those that completed), `queue` and `handoff`."""
    phases: Sequence[PhaseFigures]
    engines: Sequence[EngineFigures]
    endings: Sequence[Ending]
    """The most frequent first."""
    limits: Mapping[Limit, int]
    """How often each fired, also where another attempt made up for it."""
    attempts: int
    retried: int
    """Requests with more than one attempt."""
    recovered: int
    """Those of them that completed."""
    ttft_ratio: Times
    """Actual over projected, where both are known and the first attempt was the last."""
    tpot_ratio: Times
    prompt_tokens: int
    completion_tokens: int
    width_s: float
    windows: Sequence[Window]
    moves: int
    roles: Sequence[RoleLine]
    """Moves, and moves that were only advised: the first thousand."""
    changes: int
    standings: Sequence[EngineLine]
    """Changes of engines' states: the first thousand."""
    router: Sequence[RouterLine]
    """What became of the router itself, its starts and stops among it: the first thousand."""

    @property
    def seconds(self) -> float:
        """From the first arrival to the last end."""
        return 0.0 if self.since is None or self.until is None else self.until - self.since
