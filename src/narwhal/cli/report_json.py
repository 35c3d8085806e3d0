"""What a journal comes to, as JSON for programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from narwhal.telemetry.report import printable

if TYPE_CHECKING:
    from narwhal.telemetry.report import EngineFigures, Figures, Share, Window


def as_json(figures: Figures) -> str:
    """Times in seconds, moments as Unix time; null where there is nothing to say."""
    document = {
        "schema": "narwhal.report",
        "schema_version": 1,
        "files": figures.files,
        "lines": figures.lines,
        "bad": figures.bad,
        "bad_lines": [attrs.asdict(each) for each in figures.bad_lines],
        "torn": figures.torn,
        "left_out": figures.left_out,
        "dropped": figures.dropped,
        "starts": figures.starts,
        "stops": figures.stops,
        "models": figures.models,
        "versions": figures.versions,
        "targets": [attrs.asdict(each) for each in figures.targets],
        "since": figures.since,
        "until": figures.until,
        "requests": figures.requests,
        "attained": _share(figures.attained),
        "attained_of_completed": _share(figures.of_completed),
        "ttft_met": _share(figures.ttft_met),
        "tpot_met": _share(figures.tpot_met),
        "terminals": {
            each.terminal: {
                "requests": each.requests,
                "ttft_met": _share(each.ttft_met),
                "tpot_met": _share(each.tpot_met),
                "request_s": attrs.asdict(each.request),
            }
            for each in figures.terminals
        },
        "times_s": {name: attrs.asdict(times) for name, times in figures.times.items()},
        "phases": {
            each.phase: {
                "share": each.share,
                "seconds": each.seconds,
                "times_s": attrs.asdict(each.times),
            }
            for each in figures.phases
        },
        "engines": {each.iid: _engine(each) for each in figures.engines},
        "not_completed": [attrs.asdict(each) for each in figures.endings],
        "limits_fired": figures.limits,
        "attempts": figures.attempts,
        "retried": figures.retried,
        "recovered": figures.recovered,
        "ttft_over_projected": attrs.asdict(figures.ttft_ratio),
        "tpot_over_projected": attrs.asdict(figures.tpot_ratio),
        "prompt_tokens": figures.prompt_tokens,
        "completion_tokens": figures.completion_tokens,
        "window_s": figures.width_s,
        "windows": [_window(each) for each in figures.windows],
        "moves": figures.moves,
        "role_changes": [_texts(each) for each in figures.roles],
        "engine_changes": figures.changes,
        "router": [_texts(each) for each in figures.router],
        "engine_states": [_texts(each) for each in figures.standings],
    }
    return msgspec.json.format(msgspec.json.encode(document)).decode()


def _share(share: Share) -> dict[str, Any]:
    return {"of": share.whole, "count": share.part, "share": share.fraction}


def _engine(engine: EngineFigures) -> dict[str, Any]:
    return {
        "prefills": engine.prefills,
        "decodes": engine.decodes,
        "prefill_s": attrs.asdict(engine.prefill),
        "handoff_age_s": attrs.asdict(engine.handoff),
        "first_token_s": attrs.asdict(engine.first_token),
        "tpot_s": attrs.asdict(engine.tpot),
        "failures": engine.failures,
    }


def _window(window: Window) -> dict[str, Any]:
    return {
        "at": window.at,
        "requests": window.requests,
        "attained": _share(window.attained),
        "terminals": window.ends,
        "completion_tokens": window.completion_tokens,
        "first_token_ttft_s": {"p50": window.ttft_p50, "p99": window.ttft_p99},
        "tpot_s": {"p50": window.tpot_p50, "p99": window.tpot_p99},
        "queue_s": {"p99": window.queue_p99},
    }


def _texts(event: msgspec.Struct) -> dict[str, Any]:
    """A row as it was, but fit to be shown."""
    fields = msgspec.to_builtins(event)
    return {
        name: printable(value) if isinstance(value, str) else value
        for name, value in fields.items()
        if name != "event"
    }
