"""The checks of a soak: each finds what it is for, in evidence that is otherwise sound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from judging import Evidence, judge
from sampling import Sample, slope_per_hour
from visits import Seen

REQUEST = "req-" + "0" * 32
ROW = {
    "event": "request",
    "ts": 1000.0,
    "request_id": REQUEST,
    "client_request_id": "soak-1",
    "terminal": "completed",
    "status": 200,
    "code": None,
    "stream": True,
    "request_s": 1.5,
    "spent_s": {"prefill": 0.5, "decode": 1.0},
    "limits_fired": [],
    "attempts": [{"result": "completed"}],
    "ttft_s": 0.6,
}
STOP = {"event": "stop", "terminals": {"completed": 1}, "dropped": 0}
LEG = {
    "id": f"{REQUEST}-1-decode",
    "engine": "e1",
    "leg": "decode",
    "outcome": "done",
    "began": 999.0,
    "ended": 1000.0,
}
SCRAPE = """\
narwhal_requests_received_total{route="chat"} 1
narwhal_requests_total{route="chat",terminal="completed"} 1
narwhal_attempts_total{result="completed"} 1
narwhal_limits_fired_total{limit="queue"} 0
narwhal_pool_connections{engine="e1",pool="serving",state="busy"} 0
narwhal_retries_total 0
narwhal_kv_released_total 0
narwhal_kv_orphaned_total 0
"""
ENGINE = {
    "iid": "e1",
    "reserved_tokens": 0,
    "orphan_tokens": 0,
    "backlog_s": 0.0,
    "residents": {"decode": 0},
    "seats": {"decode": 0},
}
REQUESTS = {"in_flight": 0, "waiting": 0, "retained": 0, "terminals": {"completed": 1}}


def samples(kib: float = 0.0, fds: float = 0.0) -> list[Sample]:
    """Half an hour, in which memory and descriptors grow by so much in an hour."""
    return [
        Sample(at, round(70_000 + kib * at / 3600), round(50 + fds * at / 3600), 1, at / 10)
        for at in range(0, 1800, 10)
    ]


class Files:
    """Journal and legs, as they would be written."""

    def __init__(self, folder: Path) -> None:
        self.journal, self.legs = folder / "journal.jsonl", folder / "legs.jsonl"
        self.write(self.journal, [ROW, STOP])
        self.write(self.legs, [LEG])

    @staticmethod
    def write(path: Path, rows: list[dict[str, Any]]) -> None:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def sound(files: Files) -> Evidence:
    return Evidence(
        minutes=30,
        warm_up_s=300,
        samples=samples(),
        rest_fds=10,
        end_fds=14,
        idle_connections=4,
        before=SCRAPE.encode(),
        scrape=SCRAPE.encode(),
        state={"requests": REQUESTS, "engines": [ENGINE]},
        engines=[dict.fromkeys(("inflight", "running", "waiting", "used_blocks", "staged"), 0)],
        journal=files.journal,
        legs=files.legs,
        log="2026-01-01 00:00:00,000 INFO narwhal.monitor: e1: slow\n",
        exit_code=0,
        seen=[Seen("soak-1", "read", 200, whole=True, done=True, error=False)],
        habits={"read": 1},
        incidents={},
        forgotten=[],
        quiet_s=1.0,
    )


def wrong(evidence: Evidence) -> str:
    report, found = judge(evidence)
    assert report["wrong"] == found
    return "\n".join(found)


def test_a_sound_soak_passes_and_is_reported(files: Files) -> None:
    report, found = judge(sound(files))
    assert found == []
    assert (report["requests"], report["terminals"]) == (1, {"completed": 1})
    assert report["rss_growth_kib_per_hour"] == 0


@pytest.mark.parametrize("per_hour", [-40.0, 0.0, 1500.0])
def test_the_slope_is_that_of_the_line_whatever_a_few_samples_are(per_hour: float) -> None:
    at = [float(n) for n in range(0, 600, 5)]
    values = [100 + per_hour * second / 3600 for second in at]
    values[7], values[40] = 1e6, -1e6
    assert slope_per_hour(at, values) == pytest.approx(per_hour, abs=1e-6)


CHANGES: dict[str, dict[str, Any]] = {
    "memory grows by 2000 KiB": {"samples": samples(kib=2000)},
    "file descriptors change by": {"samples": samples(fds=120)},
    "16 file descriptors at the end": {"end_fds": 16},
    "the number of series changed": {"before": SCRAPE.partition("\n")[2].encode()},
    "did not come to rest": {"quiet_s": None},
    "1 were not answered": {"forgotten": ["soak-9, read"]},
    "the router holds": {"state": {"requests": REQUESTS | {"retained": 1}, "engines": []}},
    "work is left on e1": {
        "state": {"requests": REQUESTS, "engines": [ENGINE | {"orphan_tokens": 7}]}
    },
    "seats are taken on e1": {
        "state": {"requests": REQUESTS, "engines": [ENGINE | {"seats": {"decode": 1}}]}
    },
    "1 busy connections": {"scrape": SCRAPE.replace('"busy"} 0', '"busy"} 1').encode()},
    "engine e1 still has {'staged': 1}": {
        "engines": [
            {"iid": "e1", "inflight": 0, "running": 0, "waiting": 0, "used_blocks": 0, "staged": 1}
        ]
    },
    "and journal": {"scrape": SCRAPE.replace('"completed"} 1', '"completed"} 2').encode()},
    "and state": {
        "state": {"requests": REQUESTS | {"terminals": {"failed": 1}}, "engines": [ENGINE]}
    },
    "2 requests were received": {"scrape": SCRAPE.replace('"chat"} 1', '"chat"} 2').encode()},
    "1 lines in the log": {"log": "2026-01-01 00:00:00,000 WARNING narwhal.router: oh\n"},
    "the router ended with 1": {"exit_code": 1},
    "soak-1 saw 502": {"seen": [Seen("soak-1", "read", 502, whole=True, done=False, error=False)]},
    "soak-1 had no whole answer": {
        "seen": [Seen("soak-1", "read", 200, whole=False, done=False, error=False)]
    },
    "soak-2 has 0 rows": {
        "seen": [Seen("soak-2", "read", 200, whole=True, done=True, error=False)]
    },
}


@pytest.mark.parametrize(("says", "changes"), CHANGES.items(), ids=CHANGES)
def test_what_is_wrong_is_found(files: Files, says: str, changes: dict[str, Any]) -> None:
    evidence = sound(files)
    for name, value in changes.items():
        setattr(evidence, name, value)
    assert says in wrong(evidence)


ROWS: dict[str, list[dict[str, Any]]] = {
    "ended more than once": [ROW, ROW, STOP | {"terminals": {"completed": 2}}],
    "does not sum it up": [ROW, STOP | {"dropped": 1}],
    "attempts differ": [ROW | {"attempts": []}, STOP],
    "do not sum to its time": [ROW | {"request_s": 1.6}, STOP],
    "limits fired": [ROW | {"limits_fired": ["queue"]}, STOP],
}


@pytest.mark.parametrize(("says", "rows"), ROWS.items(), ids=ROWS)
def test_a_journal_that_is_wrong_is_found(
    files: Files, says: str, rows: list[dict[str, Any]]
) -> None:
    files.write(files.journal, rows)
    assert says in wrong(sound(files))


def test_a_leg_that_outlives_its_request_is_found_unless_the_engines_stood_still(
    files: Files,
) -> None:
    late = LEG | {"ended": 1002.0}
    files.write(files.legs, [late])
    assert "a leg outlived its request by 2.000 s" in wrong(sound(files))
    files.write(files.legs, [late, {"at": 1000.5, "late": 0.3}])
    assert wrong(sound(files)) == ""
    files.write(files.legs, [late, {"at": 900.0, "late": 0.3}])
    assert "a leg outlived" in wrong(sound(files))
    files.write(files.legs, [late | {"id": "verify-1"}])
    assert wrong(sound(files)) == ""


def test_evidence_is_all_looked_at() -> None:
    looked_at = {name for changes in CHANGES.values() for name in changes}
    told = {"minutes", "warm_up_s", "habits", "incidents"}  # only reported
    compared = {"rest_fds", "idle_connections", "journal", "legs"}
    assert {field.name for field in attrs.fields(Evidence)} == looked_at | told | compared
