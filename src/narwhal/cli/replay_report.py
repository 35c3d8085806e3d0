"""What replays came to: as a table, and as JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from narwhal.cli.table import listed, percent, table
from narwhal.simulate.replay.figures import figures_of, width_for, windows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from narwhal.cli.replay_plan import Plan
    from narwhal.simulate.replay.figures import Figures, Share, Times, Window
    from narwhal.simulate.replay.results import Result, Sample

LEFT = frozenset({"arm", "refused", "failed"})
"""Columns of text; the others are numbers."""
_STATIC = re.compile(r"\d+P\d+D")


@attrs.frozen(kw_only=True)
class Report:
    """A plan and what became of it."""

    plan: Plan
    results: Mapping[str, Sequence[Result]]
    """By arm, one for each seed."""
    figures: tuple[Figures, ...]
    """By arm, in the plan's order."""
    width_s: float
    """Length of the windows of time, the same for all arms."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """All kinds of requests, in alphabetical order."""
        return tuple(sorted({kind for each in self.figures for kind in each.kinds}))


def report_of(plan: Plan, results: Mapping[str, Sequence[Result]]) -> Report:
    """Sum up all results."""
    return Report(
        plan=plan,
        results=results,
        figures=tuple(figures_of(arm.name, results[arm.name]) for arm in plan.arms),
        width_s=width_for(result for each in results.values() for result in each),
    )


# Text


def as_text(report: Report) -> str:
    """What a person reads: what was replayed, and a line for each arm."""
    head = head_of(report)
    rows = [row_of(report, each) for each in report.figures]
    about = [f"{name:<9} {text}" for name, text in about_of(report.plan)]
    lines = [*about, "", *table(head, rows, left=LEFT)]
    verdicts = list(verdicts_of(report.figures))
    return "\n".join([*lines, "", *verdicts] if verdicts else lines)


def about_of(plan: Plan) -> Iterator[tuple[str, str]]:
    """Names and texts: the traces, the workload, the fleet and its targets."""
    for name, trace in plan.workload.traces.items():
        text = f"{name}: {len(trace.arrivals)} requests in {trace.seconds:.0f} s ({trace.format})"
        if trace.estimated:
            text += f", the output of {trace.estimated} estimated"
        if trace.left_out:
            text += "; left out: " + ", ".join(f"{n} {why}" for why, n in trace.left_out.items())
        yield "trace", text
    arrivals = next(iter(plan.workload.arrivals.values()))
    seconds = arrivals[-1].at
    rate = f", {len(arrivals) / seconds:.2f}/s" if seconds else ""
    seeds = ", ".join(map(str, plan.seeds))
    yield "replayed", f"{len(arrivals)} requests in {seconds:.0f} s{rate}; seeds {seeds}"
    config = plan.arms[0].config
    yield "fleet", f"{len(config.engines)} engines, admission {config.serving.admission}"
    ttft = config.slo.ttft_s if plan.score_ttft_s is None else plan.score_ttft_s
    yield "targets", f"first token within {ttft:g} s, {config.slo.tpot_s:g} s between tokens"


def head_of(report: Report) -> tuple[str, ...]:
    """The names of the table's columns; a kind or a seed that is alone has no column."""
    kinds = report.kinds if len(report.kinds) > 1 else ()
    return (
        *("arm", "offered", "attained"),
        *(("seeds",) if len(report.plan.seeds) > 1 else ()),
        *(f"{kind or '(no name)'}" for kind in kinds),
        *("TTFT p50", "p99", "TPOT p50", "p99", "moves", "refused", "failed"),
    )


def row_of(report: Report, each: Figures) -> tuple[str, ...]:
    """The cells of an arm."""
    kinds = report.kinds if len(report.kinds) > 1 else ()
    return (
        *(each.arm, str(each.all.offered), percent(each.all.fraction)),
        *((_spread(each),) if len(report.plan.seeds) > 1 else ()),
        *(percent(each.kinds[kind].fraction if kind in each.kinds else None) for kind in kinds),
        *_cells(each.ttft, "s", 1.0),
        *_cells(each.tpot, "ms", 1e3),
        *(str(each.moves), listed(each.refused), listed(each.failed)),
    )


def _spread(each: Figures) -> str:
    """The least and the greatest share of a seed."""
    shares = [share.fraction for share in each.by_seed.values() if share.fraction is not None]
    return f"{percent(min(shares))} - {percent(max(shares))}" if shares else "-"


def _cells(times: Times, unit: str, factor: float) -> tuple[str, str]:
    return _time(times.p50, unit, factor), _time(times.p99, unit, factor)


def _time(seconds: float | None, unit: str, factor: float) -> str:
    return "-" if seconds is None else f"{seconds * factor:.3g} {unit}"


def verdicts_of(figures: Sequence[Figures]) -> Iterator[str]:
    """For each arm that is no split: how far it is from the best and the worst of the splits."""
    shares = [(each.all.fraction, each) for each in figures if is_split(each.arm)]
    known = [(share, each.arm) for share, each in shares if share is not None]
    if len(known) < 2:  # noqa: PLR2004 - nothing to compare
        return
    (best, best_arm), (worst, worst_arm) = max(known), min(known)
    yield f"best split {best_arm} {percent(best)}, worst {worst_arm} {percent(worst)}"
    for each in figures:
        share = each.all.fraction
        if share is not None and not is_split(each.arm):
            yield (
                f"{each.arm} {percent(share)}: {_points(share - best)} the best split, "
                f"{_points(share - worst)} the worst"
            )


def is_split(arm: str) -> bool:
    """Whether an arm is a split that stays."""
    return _STATIC.fullmatch(arm) is not None


def _points(difference: float) -> str:
    side = "above" if difference >= 0 else "below"
    return f"{100 * abs(difference):.1f} points {side}"


# JSON


def as_json(report: Report) -> str:
    """The same for programs, and windows, samples and moves of each replay. Times in seconds."""
    plan = report.plan
    document = {
        "schema": "narwhal.replay",
        "schema_version": 1,
        "traces": [
            {
                "name": name,
                "format": trace.format,
                "requests": len(trace.arrivals),
                "seconds": trace.seconds,
                "left_out": trace.left_out,
                "estimated": trace.estimated,
            }
            for name, trace in plan.workload.traces.items()
        ],
        "workload": attrs.asdict(plan.workload.shape, recurse=True),
        "seeds": plan.seeds,
        "window_s": report.width_s,
        "targets": {
            "ttft_s": plan.arms[0].config.slo.ttft_s
            if plan.score_ttft_s is None
            else plan.score_ttft_s,
            "tpot_s": plan.arms[0].config.slo.tpot_s,
        },
        "arms": [figures_document(each) for each in report.figures],
        "replays": [
            _replay(result, report.width_s)
            for results in report.results.values()
            for result in results
        ],
    }
    return msgspec.json.format(msgspec.json.encode(document)).decode()


def figures_document(each: Figures) -> dict[str, Any]:
    """One arm, all its seeds together."""
    return {
        "arm": each.arm,
        "seeds": each.seeds,
        **_share(each.all),
        "worst_kind": each.worst_kind,
        "kinds": {kind: _share(share) for kind, share in each.kinds.items()},
        "by_seed": {str(seed): share.fraction for seed, share in each.by_seed.items()},
        "refused": each.refused,
        "failed": each.failed,
        "ttft_s": attrs.asdict(each.ttft),
        "tpot_s": attrs.asdict(each.tpot),
        "moves": each.moves,
        "decisions": each.decisions,
        "virtual_s": each.virtual_s,
        "real_s": each.real_s,
    }


def _share(share: Share) -> dict[str, Any]:
    return {"offered": share.offered, "attained": share.attained, "share": share.fraction}


def _replay(result: Result, width_s: float) -> dict[str, Any]:
    return {
        "arm": result.arm,
        "seed": result.seed,
        "windows": [_window(each) for each in windows_of(result, width_s)],
        "samples": [_sample(each) for each in result.samples],
        "moves": [attrs.asdict(move) for move in result.moves],
    }


def _window(each: Window) -> dict[str, Any]:
    kinds = {kind: _share(share) for kind, share in each.kinds.items()}
    return {"at": each.at, **_share(each.all), "kinds": kinds, "refused": each.refused}


def _sample(each: Sample) -> dict[str, Any]:
    return attrs.asdict(each)
