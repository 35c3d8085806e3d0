"""What `narwhal-trio check` tells: as text, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from narwhal.cli.table import table
from narwhal.model.text import visible
from narwhal.preflight import Gate, Grade, count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from narwhal.config.effective import EffectiveLimit
    from narwhal.preflight import Calibration, Finding, Report

_WORST = (Grade.FAIL, Grade.WARN, Grade.PASS, Grade.SKIPPED)
_SHOWN = (Grade.FAIL, Grade.WARN, Grade.SKIPPED)
_VERBOSE = (Grade.PASS, Grade.SKIPPED, Grade.WARN, Grade.FAIL)


def worst_of(findings: Sequence[Finding]) -> Grade:
    """The grade of a gate: that of its worst finding; what was skipped counts last."""
    grades = {finding.grade for finding in findings}
    return next((grade for grade in _WORST if grade in grades), Grade.SKIPPED)


def counted(findings: Sequence[Finding]) -> str:
    """How many findings there are of each grade."""
    counts = count(findings)
    return ", ".join(f"{counts[grade]} {grade}" for grade in _WORST if counts[grade])


def as_json(report: Report, *, interrupted: bool) -> dict[str, Any]:
    """The report for programs. Times are in seconds."""
    counts = count(report.findings)
    return {
        "ok": report.ok and not interrupted,
        "interrupted": interrupted,
        "seconds": round(report.seconds, 3),
        "counts": {grade.value: number for grade, number in counts.items()},
        "gates": {
            gate.value: worst_of(found).value
            for gate in Gate
            if (found := [each for each in report.findings if each.gate is gate])
        },
        "findings": [_finding(each) for each in report.findings],
        "limits": [
            {"limit": each.limit.value, "seconds": each.seconds, "setting": each.field}
            for each in report.limits
        ],
        "calibration": None if report.calibration is None else _calibration(report.calibration),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    fields = attrs.asdict(finding)
    return {
        "gate": finding.gate.value,
        "result": finding.grade.value,
        "subject": finding.subject,
        "seen": finding.seen,
        "expected": finding.expected,
        "do": finding.advice,
        "figures": fields["figures"],
    }


def _calibration(calibration: Calibration) -> dict[str, Any]:
    return {
        "handoffs": len(calibration.timings),
        "p99_s": calibration.p99_s,
        "proposed_first_token_timeout_s": calibration.proposed_s,
        "first_token_timeout_s": calibration.configured_s,
        "lengths": [
            {"tokens": tokens, "seconds": times} for tokens, times in calibration.lengths.items()
        ],
        "troubles": list(calibration.troubles),
    }


def as_text(report: Report, *, interrupted: bool, verbose: bool) -> str:
    """The report for people: a line for each gate, then all that is not as it should be.

    All that is as it should be as well, if `verbose`.
    """
    lines = [*_gates(report.findings), ""]
    for grade in _VERBOSE if verbose else _SHOWN:
        for subjects, each in _alike(report.findings, grade):
            lines += [*_details(subjects, each), ""]
    lines += [*_limits(report.limits), ""]
    if report.calibration is not None:
        lines += [*_calibrated(report.calibration), ""]
    return "\n".join(map(visible, [*lines, _verdict(report, interrupted=interrupted)]))


def _gates(findings: Sequence[Finding]) -> list[str]:
    rows = []
    for gate in Gate:
        found = [each for each in findings if each.gate is gate]
        if found:
            rows.append((gate.value, worst_of(found).value, counted(found)))
    return table(("gate", "result", "findings"), rows, left={"gate", "result", "findings"})


def _alike(findings: Sequence[Finding], grade: Grade) -> list[tuple[str, Finding]]:
    """The findings of that grade, those that say the same of several subjects as one."""
    subjects: dict[Finding, list[str]] = {}
    for each in findings:
        if each.grade is grade:
            alike = attrs.evolve(each, subject="", figures={})
            subjects.setdefault(alike, []).append(each.subject)
    return [(", ".join(names), each) for each, names in subjects.items()]


def _details(subjects: str, finding: Finding) -> Iterator[str]:
    yield f"{finding.grade.value.upper()} {finding.gate.value}: {subjects}"
    yield f"  seen      {finding.seen}"
    if finding.expected:
        yield f"  expected  {finding.expected}"
    if finding.advice:
        yield f"  do        {finding.advice}"


def _limits(limits: Sequence[EffectiveLimit]) -> list[str]:
    rows = [(each.limit.value, each.bound, each.field, f"{each.begins} -> {each.ends}")
            for each in limits]  # fmt: skip
    head = ("limit", "bound", "setting", "from -> until")
    return table(head, rows, left=set(head))


def _calibrated(calibration: Calibration) -> Iterator[str]:
    rows = [
        (
            str(tokens),
            str(len(times)),
            *(f"{value:.3f}" for value in (times[0], _mid(times), times[-1])),
        )
        for tokens, times in calibration.lengths.items()
    ]
    if rows:
        yield "handoffs: seconds from the decode request to the first token"
        yield from table(("tokens", "handoffs", "least", "median", "most"), rows, left=())
    p99, proposed = calibration.p99_s, calibration.proposed_s
    if p99 is not None and proposed is not None:
        yield f"p99 of {len(calibration.timings)}: {p99:.3f} s"
        yield (
            f"engine.first_token_timeout_s: {proposed:.1f} s proposed, "
            f"{calibration.configured_s:g} s in the fleet file"
        )
    for text in calibration.troubles:
        yield f"not measured: {text}"


def _mid(ordered: Sequence[float]) -> float:
    return ordered[len(ordered) // 2]


def _verdict(report: Report, *, interrupted: bool) -> str:
    counts = count(report.findings)
    seconds = f"{report.seconds:.1f} s"
    if interrupted:
        return f"interrupted after {seconds}: the gates above are all that were seen"
    if not report.ok:
        return f"not ready for traffic: {counts[Grade.FAIL]} failed ({seconds})"
    warned = counts[Grade.WARN]
    return f"ready for traffic{f', {warned} warnings' if warned else ''} ({seconds})"
