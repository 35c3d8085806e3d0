"""What must be true of a soak once it is over, and the report of it."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import attrs
from prometheus_client.parser import text_string_to_metric_families
from sampling import slope_per_hour

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from sampling import Sample
    from visits import Seen

MOST_GROWTH_KIB = 1024.0
"""Of resident memory in an hour."""
MOST_FDS_GROWTH = 60.0
"""File descriptors in an hour, by the fewest of each minute. They are as many as there are clients
and connections to engines, so that this is noise; the count at the end is exact."""
LOOP_TURNS = 4
"""Turns of an engine's loop from a connection in its backlog to the record of a leg."""
LEG_GRACE_S = 1.5
"""From the end of a request to the end of its last leg: the second of a release, and the clocks."""


@attrs.define
class Evidence:
    """Everything that a soak left behind."""

    minutes: float
    warm_up_s: float
    samples: list[Sample]
    rest_fds: int
    """File descriptors before the first client."""
    end_fds: int
    """And after the last one, when all was quiet."""
    idle_connections: int
    """Kept to engines then."""
    before: bytes
    """A scrape before the load."""
    scrape: bytes
    """A scrape when all was quiet again."""
    state: dict[str, Any]
    """The state document, at the same time."""
    engines: list[dict[str, Any]]
    """What the engines say of themselves, leases over."""
    journal: Path
    legs: Path
    log: str
    exit_code: int
    seen: Sequence[Seen]
    habits: Mapping[str, int]
    incidents: Mapping[str, int]
    forgotten: Sequence[str]
    quiet_s: float | None
    """How long after the last client the router was at rest; None: not within its time."""


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def values(scrape: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(scrape.decode())
        for sample in family.samples
    }


def total(scrape: bytes, name: str, by: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for (metric, labels), value in values(scrape).items():
        if metric == name and value:
            found[dict(labels)[by]] += int(value)
    return found


def judge(evidence: Evidence) -> tuple[dict[str, Any], list[str]]:
    """The report, and all that is wrong."""
    everything = rows_of(evidence.journal)
    rows = [row for row in everything if row["event"] == "request"]
    wrong = [
        *_growth(evidence),
        *_at_rest(evidence),
        *_counters(evidence, rows, everything),
        *_one_terminal(evidence, rows),
        *_legs(evidence, rows),
        *_log(evidence),
    ]
    return _report(evidence, rows, wrong), wrong


def _steady(evidence: Evidence) -> list[Sample]:
    return [sample for sample in evidence.samples if sample.at >= evidence.warm_up_s]


def _slopes(evidence: Evidence) -> tuple[float, float]:
    steady = _steady(evidence)
    at = [sample.at for sample in steady]
    fewest: dict[int, int] = {}
    for sample in steady:  # what comes and goes with clients is not there all the time
        minute = int(sample.at // 60)
        fewest[minute] = min(fewest.get(minute, sample.fds), sample.fds)
    return (
        slope_per_hour(at, [sample.rss_kib for sample in steady]),
        slope_per_hour([minute * 60 for minute in fewest], list(fewest.values())),
    )


def _growth(evidence: Evidence) -> Iterator[str]:
    memory, fds = _slopes(evidence)
    if memory > MOST_GROWTH_KIB:
        yield f"memory grows by {memory:.0f} KiB an hour; at most {MOST_GROWTH_KIB:.0f} is flat"
    if abs(fds) > MOST_FDS_GROWTH:
        yield f"file descriptors change by {fds:.1f} an hour"
    left = evidence.end_fds - evidence.rest_fds
    # One may be in the making: a probe of the monitor's.
    if left > evidence.idle_connections + 1:
        yield (
            f"{evidence.end_fds} file descriptors at the end, {evidence.rest_fds} at the start, "
            f"and {evidence.idle_connections} idle connections to engines"
        )
    if len({key for key, _ in values(evidence.before).items()}) != len(values(evidence.scrape)):
        yield "the number of series changed"


def _at_rest(evidence: Evidence) -> Iterator[str]:
    yield from _router_at_rest(evidence)
    for engine in evidence.engines:
        names = ("inflight", "running", "waiting", "used_blocks", "staged")
        left = {name: engine[name] for name in names if engine[name]}
        if left:
            yield f"engine {engine['iid']} still has {left}"
    for (name, labels), value in values(evidence.scrape).items():
        kept = dict(labels)
        # Of the control pool, a probe of the monitor's may be under way.
        serving = name == "narwhal_pool_connections" and kept["pool"] != "control"
        if serving and kept["state"] != "idle" and value:
            yield f"{value:g} {kept['state']} connections: {kept}"


def _router_at_rest(evidence: Evidence) -> Iterator[str]:
    if evidence.quiet_s is None:
        yield "the router did not come to rest"
    if evidence.forgotten:
        yield f"{len(evidence.forgotten)} were not answered: {evidence.forgotten[:5]}"
    requests = evidence.state["requests"]
    held = {name: requests[name] for name in ("in_flight", "waiting", "retained")}
    if any(held.values()):
        yield f"the router holds {held}"
    for engine in evidence.state["engines"]:
        if engine["reserved_tokens"] or engine["orphan_tokens"] or engine["backlog_s"]:
            yield f"work is left on {engine['iid']}: {engine}"
        if any(engine["residents"].values()) or any(engine["seats"].values()):
            yield f"seats are taken on {engine['iid']}: {engine}"


def _counters(
    evidence: Evidence, rows: list[dict[str, Any]], everything: list[dict[str, Any]]
) -> Iterator[str]:
    counted = total(evidence.scrape, "narwhal_requests_total", "terminal")
    journaled = Counter(row["terminal"] for row in rows)
    if counted != journaled:
        yield f"counters {dict(counted)} and journal {dict(journaled)} differ"
    told = Counter(evidence.state["requests"]["terminals"])
    if +told != counted:
        yield f"counters {dict(counted)} and state {dict(told)} differ"
    received = total(evidence.scrape, "narwhal_requests_received_total", "route").total()
    if received != len(rows):
        yield f"{received} requests were received, and {len(rows)} ended"
    stop = everything[-1]
    if stop["event"] != "stop" or Counter(stop["terminals"]) != counted or stop["dropped"]:
        yield f"the journal's last row does not sum it up: {stop}"
    attempts = total(evidence.scrape, "narwhal_attempts_total", "result")
    if attempts != Counter(each["result"] for row in rows for each in row["attempts"]):
        yield f"attempts differ: {dict(attempts)} are counted"
    limits = total(evidence.scrape, "narwhal_limits_fired_total", "limit")
    fired = Counter(limit for row in rows for limit in row["limits_fired"])
    # Probes have a limit of their own, and no row.
    if any(limits[limit] < count for limit, count in fired.items()):
        yield f"limits fired {dict(fired)} in the journal and {dict(limits)} in the counters"
    for row in rows:
        if abs(sum(row["spent_s"].values()) - row["request_s"]) > 0.001:
            yield f"the phases of {row['request_id']} do not sum to its time: {row}"


def _one_terminal(evidence: Evidence, rows: list[dict[str, Any]]) -> Iterator[str]:
    ids = Counter(row["request_id"] for row in rows)
    twice = [request for request, count in ids.items() if count > 1]
    if twice:
        yield f"ended more than once: {twice[:5]}"
    by_client: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_client.setdefault(row["client_request_id"], []).append(row)
    for seen in evidence.seen:
        own = by_client.get(seen.client_id, [])
        if seen.status is None and not own:
            continue  # it never came to the router
        if len(own) != 1:
            yield f"{seen.client_id} has {len(own)} rows"
            continue
        yield from _same_story(seen, own[0])


def _same_story(seen: Seen, row: dict[str, Any]) -> Iterator[str]:
    """What the client saw is what the journal says."""
    if seen.status is not None and row["status"] != seen.status:
        yield f"{seen.client_id} saw {seen.status}: {row}"
    good = seen.whole and seen.status == 200 and (seen.done or not row["stream"])
    if good != (row["terminal"] == "completed") and seen.whole:
        yield f"{seen.client_id} saw {seen}: {row}"
    if row["terminal"] == "completed" and not seen.whole:
        yield f"{seen.client_id} had no whole answer: {row}"


def _legs(evidence: Evidence, rows: list[dict[str, Any]]) -> Iterator[str]:
    ends = {row["request_id"]: row["ts"] for row in rows}
    records = rows_of(evidence.legs)
    lags = [(each["at"], each["at"] + each["late"]) for each in records if "late" in each]
    for leg in records:
        found = re.match(r"(req-[0-9a-f]{32})-", leg.get("id", ""))
        if found is None or found[1] not in ends:
            continue  # the monitor's own, or no leg
        ended, over = leg["ended"], ends[found[1]]
        if ended <= over + LEG_GRACE_S:
            continue
        # What an engine that got no time from the machine did late was not asked of it late.
        stood = max((end - at for at, end in lags if end > over and at < ended), default=0.0)
        if ended > over + LEG_GRACE_S + LOOP_TURNS * stood:
            yield f"a leg outlived its request by {ended - over:.3f} s: {leg}"


def _log(evidence: Evidence) -> Iterator[str]:
    loud = re.findall(
        r"^(?:.* (?:WARNING|ERROR|CRITICAL) |Traceback).*$", evidence.log, re.MULTILINE
    )
    if loud:
        yield f"{len(loud)} lines in the log are warnings or worse, such as: {loud[0]}"
    if evidence.exit_code:
        yield f"the router ended with {evidence.exit_code}: {evidence.log[-2000:]}"


def _report(evidence: Evidence, rows: list[dict[str, Any]], wrong: Iterable[str]) -> dict[str, Any]:
    steady = _steady(evidence)
    memory, fds = _slopes(evidence)
    span = steady[-1].at - steady[0].at if len(steady) > 1 else 0.0
    rss = [sample.rss_kib / 1024 for sample in steady]
    completed = [row for row in rows if row["terminal"] == "completed"]
    return {
        "minutes": evidence.minutes,
        "warm_up_s": evidence.warm_up_s,
        "requests": len(rows),
        "requests_per_s": round(len(rows) / (evidence.minutes * 60), 1),
        "terminals": dict(Counter(row["terminal"] for row in rows)),
        "codes": dict(Counter(row["code"] or "ok" for row in rows).most_common()),
        "limits_fired": dict(total(evidence.scrape, "narwhal_limits_fired_total", "limit")),
        "left_in_phase": dict(
            Counter(
                max(row["spent_s"], key=row["spent_s"].get)
                for row in rows
                if row["terminal"] == "cancelled"
            ).most_common()
        ),
        "retries": int(values(evidence.scrape)["narwhal_retries_total", ()]),
        "kv_released": int(values(evidence.scrape)["narwhal_kv_released_total", ()]),
        "kv_orphaned": int(values(evidence.scrape)["narwhal_kv_orphaned_total", ()]),
        "tokens": dict(total(evidence.scrape, "narwhal_tokens_total", "kind")),
        "engines_became": dict(total(evidence.scrape, "narwhal_engine_transitions_total", "state")),
        "clients": dict(evidence.habits),
        "incidents": dict(evidence.incidents),
        "completed_ttft_p50_s": _quantile([r["ttft_s"] for r in completed if r["ttft_s"]], 0.5),
        "completed_ttft_p99_s": _quantile([r["ttft_s"] for r in completed if r["ttft_s"]], 0.99),
        "cpu_share": round((steady[-1].cpu_s - steady[0].cpu_s) / span, 3) if span else None,
        "rss_mib": {
            "first": round(evidence.samples[0].rss_kib / 1024, 1),
            "after_warm_up": round(rss[0], 1),
            "median": _quantile(rss, 0.5),
            "last": round(rss[-1], 1),
            "most": round(max(rss), 1),
        },
        "rss_growth_kib_per_hour": round(memory, 1),
        "fds": {
            "at_rest": evidence.rest_fds,
            "most": max(sample.fds for sample in evidence.samples),
            "at_the_end": evidence.end_fds,
            "of_them_idle_connections": evidence.idle_connections,
        },
        "fds_growth_per_hour": round(fds, 2),
        "engines_late_most_s": max(
            (round(each["late"], 3) for each in rows_of(evidence.legs) if "late" in each),
            default=0.0,
        ),
        "quiet_after_s": evidence.quiet_s,
        "wrong": list(wrong),
    }


def _quantile(values: list[float], share: float) -> float | None:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3) if ordered else None
