"""Takes a journal's lines one by one, and keeps of them what a report is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from narwhal.model import Limit, Phase, Terminal, TtftScope
from narwhal.model.text import visible
from narwhal.telemetry.report.columns import Columns, Names
from narwhal.telemetry.report.lines import (
    EngineLine,
    RequestLine,
    RoleLine,
    RotatedLine,
    RouterLine,
    StartLine,
    StopLine,
    parse,
)

if TYPE_CHECKING:
    from narwhal.telemetry.report.lines import AttemptLine
    from narwhal.telemetry.report.wanted import Targets, Wanted

TERMINALS, PHASES, LIMITS = tuple(Terminal), tuple(Phase), tuple(Limit)
UNCOUNTED = frozenset({Terminal.INVALID, Terminal.CANCELLED})
"""Ends that say nothing of how well the fleet serves: the client's mistake, and its own doing."""

MOST_KEPT = 1000
"""Bad lines, moves and changes of engines that are kept one by one; of more there is the count."""
_MOST_ENGINES, _MOST_CODES, _MOST_TEXT = 4096, 256, 300


def _columns(*kinds: tuple[str, str]) -> dict[str, str]:
    return {name: kind for kind, names in kinds for name in names.split()}


# In bytes: a moment takes 8, seconds 4 (seven digits), and what has few values 1 or 2.
_REQUEST = _columns(
    ("d", "at"),
    ("b", "terminal ttft_met tpot_met"),
    ("h", "code"),
    ("b", "limit"),
    ("f", "request_s ttft_s prefill_ttft_s first_token_ttft_s tpot_s ttft_ratio tpot_ratio"),
    ("f", "prompt completion"),
    ("b", "attempts"),
    ("h", "decoder"),
    ("f", " ".join(PHASES)),
)
_ATTEMPT = _columns(
    ("h", "prefill decode failed failure"),
    ("f", "prefill_s handoff_age_s first_token_s"),
)


@attrs.frozen
class Bad:
    """A line that is no row."""

    name: str
    """The file."""
    number: int
    """The line, from 1."""
    why: str


class Reading:
    """What was read so far.

    Call `begin` for every file and then `add` for each of its lines. Lines that are no rows are
    counted; a last line without a line feed may be one that is being written.
    """

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.requests = Columns(_REQUEST)
        self.attempts = Columns(_ATTEMPT)
        self.engines = Names(_MOST_ENGINES)
        self.codes = Names(_MOST_CODES)
        self.failures = Names(_MOST_CODES)
        self.limits = dict.fromkeys(LIMITS, 0)
        """How often each fired, also where a later attempt made up for it."""
        self.files: list[str] = []
        self.lines = self.bad = self.torn = self.unknown = self.left_out = 0
        self.bad_lines: list[Bad] = []
        self.starts = self.stops = self.dropped = 0
        self.models: dict[str, None] = {}
        self.versions: dict[str, None] = {}
        self.targets: dict[Targets, None] = {}
        self.moves = self.changes = 0
        self.roles: list[RoleLine] = []
        self.standings: list[EngineLine] = []
        self.router: list[RouterLine] = []
        """What became of the router, its starts and stops among it."""
        self._name, self._number = "", 0
        self._model: str | None = None
        self._measure: Targets | None = None

    def begin(self, name: str) -> None:
        """The lines of another file follow. What the last one said of its targets is over."""
        name = visible(name)
        self.files.append(name)
        self._name, self._number, self._model = name, 0, None
        self._measure = self.wanted.targets(None)

    def add(self, line: bytes) -> None:
        """One line. Raises `SchemaError` for a journal of another format."""
        self._number += 1
        if not line.strip():
            return
        self.lines += 1
        try:
            found = parse(line)
        except ValueError as error:
            self.spoilt(str(error), torn=not line.endswith(b"\n"))
            return
        match found:
            case RequestLine():
                self._request(found)
            case StartLine():
                self._start(found)
            case StopLine():
                self.stops += 1
                self.dropped += found.dropped
                self._became(found.ts, "stopped", "")
            case RouterLine():
                self._became(found.ts, found.change, found.reason)
            case EngineLine() | RoleLine():
                self._event(found)
            case None:
                self.unknown += 1

    def spoilt(self, why: str, *, torn: bool = False) -> None:
        """The present line is no row."""
        if torn:
            self.torn += 1
            return
        self.bad += 1
        if len(self.bad_lines) < MOST_KEPT:
            self.bad_lines.append(Bad(self._name, self._number, printable(why)))

    def skip(self, why: str) -> None:
        """A line was passed over unread."""
        self._number += 1
        self.lines += 1
        self.spoilt(why)

    def _start(self, line: StartLine) -> None:
        self._model = line.model
        if not isinstance(line, RotatedLine):
            self.starts += 1
            self._became(line.ts, "started", f"version {line.version}")
        self._measure = self.wanted.targets(line.slo)
        if self.wanted.model in (None, line.model):
            self.models[printable(line.model)] = None
            self.versions[printable(line.version)] = None
            for engine in line.engines:
                self.engines.number(printable(engine.iid))

    def _became(self, ts: float, change: str, reason: str) -> None:
        wanted = self.wanted
        known = wanted.model in (None, self._model) and wanted.covers(ts)
        if known and len(self.router) < MOST_KEPT:
            self.router.append(RouterLine(ts=ts, change=change, reason=reason))

    def _event(self, line: EngineLine | RoleLine) -> None:
        wanted = self.wanted
        other = wanted.model not in (None, self._model) or wanted.engine not in (None, line.engine)
        if other or not wanted.covers(line.ts):
            return
        if isinstance(line, EngineLine):
            self.changes += 1
            if len(self.standings) < MOST_KEPT:
                self.standings.append(line)
        else:
            self.moves += line.verdict == "moved"
            if len(self.roles) < MOST_KEPT:
                self.roles.append(line)

    # Requests

    def _request(self, line: RequestLine) -> None:
        at = line.ts - line.request_s
        if not self._is_wanted(line, at):
            self.left_out += 1
            return
        for limit in line.limits_fired:
            self.limits[limit] += 1
        for attempt in line.attempts:
            self._attempt(attempt)
        ttft_met, tpot_met, scoped = self._judge(line)
        last = line.attempts[-1] if line.attempts else None
        spent = line.spent_s
        code = line.code if line.code is None else printable(line.code)
        self.requests.append(
            *(at, TERMINALS.index(line.terminal), ttft_met, tpot_met),
            self.codes.number_or_none(code),
            -1 if line.limit is None else LIMITS.index(line.limit),
            line.request_s,
            line.ttft_s if line.stream else None,
            *(line.prefill_ttft_s, line.first_token_ttft_s, line.tpot_s),
            # A later attempt was not what was projected.
            _ratio(scoped, line.projected_ttft_s if len(line.attempts) == 1 else None),
            _ratio(line.tpot_s, line.projected_tpot_s),
            *(line.prompt_tokens, line.completion_tokens, min(127, len(line.attempts))),
            self._engine(last.decode if last else None),
            *(spent.get(phase) for phase in PHASES),
        )

    def _is_wanted(self, line: RequestLine, at: float) -> bool:
        wanted = self.wanted
        return (
            wanted.covers(at)
            and wanted.model in (None, self._model)
            and wanted.route in (None, line.route)
            and (
                wanted.engine is None
                or any(wanted.engine in (each.prefill, each.decode) for each in line.attempts)
            )
        )

    def _judge(self, line: RequestLine) -> tuple[int, int, float | None]:
        """Whether both times were within their targets (1, 0, or -1: not known), and the first."""
        measure = self._measure
        first_token = measure is not None and measure.ttft_scope is TtftScope.FIRST_TOKEN
        ttft = line.first_token_ttft_s if first_token else line.prefill_ttft_s
        if measure is None:
            return -1, -1, ttft
        self.targets[measure] = None
        return _met(ttft, measure.ttft_s), _met(line.tpot_s, measure.tpot_s), ttft

    def _attempt(self, line: AttemptLine) -> None:
        self.attempts.append(
            self._engine(line.prefill),
            self._engine(line.decode),
            self._engine(line.engine),
            self.failures.number_or_none(None if line.failure is None else printable(line.failure)),
            *(line.prefill_s, line.handoff_age_s, line.first_token_s),
        )

    def _engine(self, iid: str | None) -> int:
        return -1 if iid is None else self.engines.number(printable(iid))


def _met(value: float | None, target: float) -> int:
    return -1 if value is None else int(value <= target)


def _ratio(actual: float | None, projected: float | None) -> float | None:
    return None if actual is None or not projected else actual / projected


def printable(text: str) -> str:
    """As it may be shown on a terminal: a file may hold anything."""
    if len(text) > _MOST_TEXT:
        text = text[: _MOST_TEXT - 3] + "..."
    return visible(text)
