"""What is known of a world when it is over: all that the invariants look at."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from narwhal.simulate.callers import text_of_choice

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from narwhal.emulator import Record
    from narwhal.fleet import Transition
    from narwhal.simulate.asks import Ask
    from narwhal.simulate.callers import Caller
    from narwhal.simulate.plan import Plan
    from narwhal.simulate.recording import Abandoned
    from narwhal.telemetry import AttemptRow, RequestRow
    from narwhal.telemetry.totals import Totals

DONE = b"data: [DONE]\n\n"


@attrs.frozen
class Violation:
    """An invariant that did not hold."""

    invariant: str
    text: str
    about: tuple[str, ...] = ()
    """Names and ids that it concerns, as they stand in the trace."""
    at: float = float("inf")
    """When it was broken, or known to be."""


@attrs.frozen
class LegName:
    """What the router's id of a leg says."""

    request: str
    attempt: int
    leg: str
    """`prefill`, `decode` or `release`."""

    @classmethod
    def parse(cls, name: str) -> LegName:
        """Read `req-...-ATTEMPT-LEG`."""
        request, attempt, leg = name.rsplit("-", 2)
        return cls(request, int(attempt), leg)


@attrs.frozen(eq=False)
class Leg:
    """One leg, as its engine saw it, by the router's name for it."""

    record: Record
    name: LegName

    @property
    def unread_s(self) -> float:
        """For how long its engine was made to look away from its connection."""
        fault = self.record.fault
        return 0.0 if fault is None else fault.unread_s

    @property
    def arrived(self) -> float:
        """When it reached its engine, which may have read it later."""
        return self.record.began - self.unread_s

    @property
    def output(self) -> bytes:
        """All that a client can be sent of it: to the end of `[DONE]`, if it came to that."""
        sent = bytes(self.record.sent)
        end = sent.find(DONE)
        return sent if end < 0 else sent[: end + len(DONE)]

    def stream(self, *, usage: bool) -> bytes:
        """The same without the event that only tells the usage, unless that was asked for."""
        output = self.output
        if usage:
            return output
        *events, rest = output.split(b"\n\n")
        whole = b"".join(event + b"\n\n" for event in events if not _is_usage(event))
        return whole if _is_usage(rest) else whole + rest

    @cached_property
    def text(self) -> str:
        """The text of all complete events."""
        *events, _ = self.output.split(b"\n\n")
        found = []
        for event in events:
            payload = event.removeprefix(b"data: ")
            if payload.startswith(b"{"):
                try:
                    document = msgspec.json.decode(payload)
                except msgspec.DecodeError:
                    break
                found += [text_of_choice(choice) for choice in document.get("choices", ())]
        return "".join(found)


def _is_usage(event: bytes) -> bool:
    return b'"choices":[]' in event and b'"usage":{' in event


@attrs.frozen(kw_only=True)
class Evidence:
    """A world that is over."""

    plan: Plan
    rows: Sequence[RequestRow]
    asks: Sequence[Ask]
    callers: Sequence[Caller]
    records: Sequence[Record]
    """Every leg, in the order in which engines got them."""
    changes: Sequence[Transition]
    """Every change of an engine's state."""
    abandoned: Sequence[Abandoned]
    lost: Mapping[str, int]
    """Handoffs whose names the router never learned, by producer."""
    credit_changes: Sequence[str]
    credits_left: float
    admitted_in_order: Sequence[int]
    passed: int
    """Requests that were let in while others waited."""
    most_waiting: int
    totals: Totals
    samples: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
    """The page of metrics: name and labels to value."""
    severed: frozenset[tuple[str, int]]
    """Addresses of connections whose engine could not see that the router had left."""
    unnoticed: frozenset[str]
    """Clients whose leaving the router could not see."""
    rest: Mapping[str, int]
    """What the router still holds after the last request; all of it should be 0."""
    engines_idle: bool
    open_streams: int
    errors: Sequence[str]
    """What was logged as an error."""
    seen: Sequence[Violation]
    """What was seen to be wrong while the world went on."""

    @cached_property
    def row_of(self) -> dict[str, RequestRow]:
        """Rows by the router's id."""
        return {row.request_id: row for row in self.rows}

    @cached_property
    def row_of_ask(self) -> dict[str, RequestRow]:
        """Rows by the client's id."""
        return {row.client_request_id: row for row in self.rows if row.client_request_id}

    @cached_property
    def legs(self) -> list[Leg]:
        """Every leg of a request, by the router's name for it: all but counts and probes."""
        return [
            Leg(record, LegName.parse(record.request_id))
            for record in self.records
            if record.request_id.startswith("req-")
        ]

    @cached_property
    def recorded_legs(self) -> list[Leg]:
        """Those of an attempt that is in the journal; that others are not is a finding."""
        return [
            leg
            for leg in self.legs
            if (row := self.row_of.get(leg.name.request)) is not None
            and leg.name.attempt <= len(row.attempts)
        ]

    def attempt_of(self, leg: Leg) -> AttemptRow:
        """What is recorded of a leg's attempt; the leg is one of `recorded_legs`."""
        return self.row_of[leg.name.request].attempts[leg.name.attempt - 1]

    @cached_property
    def legs_of(self) -> dict[str, list[Leg]]:
        """The same by request."""
        found = defaultdict(list)
        for leg in self.legs:
            found[leg.name.request].append(leg)
        return found

    def leg_called(self, answer_id: str) -> Leg | None:
        """The leg whose answer has this `id`: the engine puts its prefix before the leg's name."""
        return self._by_answer.get(answer_id.partition("-")[2])

    @cached_property
    def _by_answer(self) -> dict[str, Leg]:
        return {leg.record.request_id: leg for leg in self.legs}

    def value(self, name: str, **labels: Any) -> float:
        """A sample of the page of metrics."""
        key = tuple(sorted((label, str(value)) for label, value in labels.items()))
        return self.samples[f"narwhal_{name}", key]
