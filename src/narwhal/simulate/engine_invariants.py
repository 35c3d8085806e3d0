"""Invariants of what engines see: legs, handoffs, places."""

from __future__ import annotations

import itertools
from collections import Counter
from math import inf
from typing import TYPE_CHECKING

from narwhal.emulator import Verdict
from narwhal.fleet import TAKES_WORK
from narwhal.model import Phase, Terminal
from narwhal.simulate.invariants import invariant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from narwhal.simulate.evidence import Evidence, Leg
    from narwhal.simulate.invariants import Finding

OK = 200
CLOSED_WITHIN_S = 0.05
"""How long a leg's connection may stay open when its request has ended; engines see it later."""
GRACE_S = 1.0
"""What release legs and the ends of finished answers are given beyond their request."""


def _about(leg: Leg) -> tuple[str, ...]:
    return (leg.name.request,)


@invariant(
    "legs end with their request",
    "No leg begins when its request is over, and none is open for longer than the grace.",
)
def _legs_end_with_it(evidence: Evidence) -> Iterator[Finding]:
    slack = evidence.plan.slack
    for leg in evidence.legs:
        record = leg.record
        row = evidence.row_of.get(leg.name.request)
        if row is None:
            yield f"{record.request_id} is a leg of no request", _about(leg), record.began
            continue
        end = row.arrival + row.request_s
        released = leg.name.leg == "release"
        if leg.arrived > end + slack + (GRACE_S if released else 0.0):
            yield f"{record.request_id} began after its request", _about(leg), record.began
        if leg.name.attempt > len(row.attempts):
            yield f"{record.request_id} is of an attempt that is not recorded", _about(leg), inf
        if record.peer in evidence.severed:
            continue
        seen_off = record.sent and row.terminal is Terminal.COMPLETED
        bound = GRACE_S if seen_off or released else 0.0
        late = (inf if record.ended is None else record.ended) - end - bound - leg.unread_s
        if late > CLOSED_WITHIN_S + slack:
            yield f"{record.request_id} was open {late:.3f} s too long", _about(leg), end + bound


@invariant(
    "who is out of service gets no legs",
    "No leg of a request goes to an engine that is out of service, but for those that were on "
    "their way there already.",
)
def _out_of_service_is_out(evidence: Evidence) -> Iterator[Finding]:
    config = evidence.plan.config
    # A leg that has its engine may wait for a connection, and for the connection to be opened.
    on_the_way = config.engine.pool_timeout_s + config.engine.connect_timeout_s
    for iid, out, back in _outages(evidence):
        for leg in evidence.recorded_legs:
            late = leg.arrived - out - on_the_way - evidence.plan.slack
            if leg.record.engine == iid and late > 0 and leg.arrived < back:
                text = f"{leg.record.request_id} went to {iid}, out of service for {late:.3f} s"
                yield text, _about(leg), leg.arrived


def _outages(evidence: Evidence) -> Iterator[tuple[str, float, float]]:
    """Engines, and from when until when they were out of service."""
    since: dict[str, float] = {}
    for change in evidence.changes:
        if change.target in TAKES_WORK:
            if change.iid in since:
                yield change.iid, since.pop(change.iid), change.at
        else:
            since.setdefault(change.iid, change.at)
    for iid, out in since.items():
        yield iid, out, inf


@invariant(
    "places are kept",
    "No engine ever has more legs of a phase than it has places.",
)
def _places_are_kept(evidence: Evidence) -> Iterator[Finding]:
    plan, serving = evidence.plan, evidence.plan.config.serving
    if not plan.instant or evidence.severed:
        return  # an engine sees later than the router that a leg is over
    places = {"prefill": serving.prefill_concurrency, "decode": serving.decode_concurrency}
    for kind, most in places.items():
        if not most:
            continue
        for spec in plan.config.engines:
            legs = [
                leg
                for leg in evidence.recorded_legs
                if leg.name.leg == kind and leg.record.engine == spec.iid and not leg.unread_s
            ]
            resident = _most_at_once(evidence, legs)
            if resident > most:
                yield f"{spec.iid} had {resident} {kind} legs, of {most}", (), inf


def _most_at_once(evidence: Evidence, legs: list[Leg]) -> int:
    changes = []
    for leg in legs:
        row = evidence.row_of[leg.name.request]
        over = row.arrival + row.request_s
        ended = over if leg.record.ended is None else min(leg.record.ended, over)
        # What ends and begins at one moment ends first.
        changes += [(leg.record.began, 1), (ended - 1e-6, -1)]
    return max(itertools.accumulate(change for _, change in sorted(changes)), default=0)


@invariant(
    "a handoff is used once",
    "A handoff goes to one decoder, once; and it is released only if it was given up.",
)
def _handoffs_are_used_once(evidence: Evidence) -> Iterator[Finding]:
    abandoned = {each.held.correlation.request_id for each in evidence.abandoned}
    uses = Counter(leg.record.names for leg in evidence.recorded_legs if leg.name.leg == "decode")
    for leg in evidence.recorded_legs:
        if leg.name.leg == "decode" and leg.record.names and uses[leg.record.names] > 1:
            yield f"{leg.record.names} went to {uses[leg.record.names]} decoders", _about(leg), inf
        if leg.name.leg == "release" and leg.record.request_id not in abandoned:
            yield f"{leg.record.request_id} released what is in use", _about(leg), inf


@invariant(
    "a handoff is whole and not too old",
    "No decoder is sent a handoff that is past its cap or its lease, or that lacks something: "
    "such a one yields wrong tokens, or kills the engine. And no token that was generated from "
    "foreign blocks is taken for an answer.",
)
def _handoffs_are_fresh(evidence: Evidence) -> Iterator[Finding]:
    prefills = {leg.record.handle: leg for leg in evidence.recorded_legs if leg.record.handle}
    for leg in evidence.recorded_legs:
        if leg.name.leg != "decode" or leg.record.pull is None:
            continue
        if leg.record.pull.verdict in (Verdict.FATAL, Verdict.LOST):
            yield f"{leg.record.request_id} was sent half a handoff", _about(leg), leg.record.began
        prefill = prefills.get(leg.record.names or "")
        if prefill is not None:
            for problem in _too_old(evidence, leg, prefill):
                yield f"{leg.record.request_id} {problem}", _about(leg), leg.record.began


def _too_old(evidence: Evidence, leg: Leg, prefill: Leg) -> Iterator[str]:
    plan = evidence.plan
    cap = plan.config.serving.handoff_timeout_s or inf
    lease = plan.config.engine.kv_lease_s
    read, sent = leg.record.began, leg.arrived
    began, answered = prefill.record.began, prefill.record.answered or sent
    if sent - began > cap + plan.slack:
        yield f"was sent a handoff that was {sent - began:.3f} s old, of {cap:g}"
    if sent - answered > lease + plan.slack:
        yield f"was sent a handoff {sent - answered:.3f} s into its lease of {lease:g}"
    taken = evidence.attempt_of(leg).first_token_s is not None
    wrong = leg.record.pull is not None and leg.record.pull.verdict is Verdict.WRONG
    if taken and wrong and not lease <= read - answered <= lease + plan.slack:
        yield "read foreign blocks, and its tokens were taken"


@invariant(
    "no KV cache is forgotten",
    "KV cache that the router knows to be pinned was accepted by a decoder, or else given up, "
    "once; and all that was given up is counted as released or as orphaned.",
)
def _no_kv_is_forgotten(evidence: Evidence) -> Iterator[Finding]:
    given_up = Counter(each.held.correlation.request_id for each in evidence.abandoned)
    for name, times in given_up.items():
        if times > 1:
            yield f"{name} was given up {times} times", (name,), inf
    counted = evidence.totals.kv_released + evidence.totals.kv_orphaned
    gone = len(evidence.abandoned) + sum(evidence.lost.values())
    if counted != gone:
        yield f"{gone} handoffs were given up, {counted} counted", (), inf
    accepted = {
        leg.record.names
        for leg in evidence.recorded_legs
        if leg.name.leg == "decode" and leg.record.status == OK
    }
    unnamed: Counter[str] = Counter()
    for leg in evidence.recorded_legs:
        record = leg.record
        if leg.name.leg != "prefill" or record.handle is None or record.handle in accepted:
            continue
        if given_up[f"{leg.name.request}-{leg.name.attempt}-release"] or _sent_again(evidence, leg):
            continue
        attempt = evidence.attempt_of(leg)
        if attempt.prefill_s is None or not _tells_handoff(leg):
            continue
        # Only of an answer that could not be understood is the name unknown.
        unnamed[record.engine] += attempt.phase is Phase.PREFILL
        known = attempt.phase is not Phase.PREFILL
        if known or unnamed[record.engine] > evidence.lost.get(record.engine, 0):
            yield f"{record.handle} is pinned, and nobody knows", _about(leg), inf


def _sent_again(evidence: Evidence, leg: Leg) -> bool:
    """Whether the leg was replayed, so that this answer of it was never read."""
    same = [
        other
        for other in evidence.legs_of[leg.name.request]
        if other.record.request_id == leg.record.request_id
    ]
    return same[-1] is not leg


def _tells_handoff(leg: Leg) -> bool:
    """Whether the answer tells of a handoff, if only of half of one."""
    return b'"kv_transfer_params":{' in leg.record.sent


@invariant(
    "engines come to rest",
    "With the router gone and the leases over, no engine holds a request or a KV block.",
)
def _engines_come_to_rest(evidence: Evidence) -> Iterator[Finding]:
    if not evidence.engines_idle:
        yield "an engine still holds something", (), inf
