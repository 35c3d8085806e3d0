"""`narwhal-trio report`: files in, tables, JSON and pages out."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from narwhal.cli import report_files
from narwhal.cli.main import main
from narwhal.cli.units import moment, seconds, span

from journal_lines import START, line, refused, request

SVG = "{http://www.w3.org/2000/svg}"
MOVE = {
    "event": "role",
    "ts": 1030.0,
    "engine": "d0",
    "to": "prefill",
    "verdict": "moved",
    "rule": "consolidation",
    "split": "1P2D",
    "proposed": "2P1D",
    "reason": "1P2D: too few",
}
HELD = {
    "event": "engine",
    "ts": 1031.0,
    "engine": "d0",
    "from": "serving",
    "to": "held",
    "cause": "suspected",
    "reason": "3 failures in a row: stream",
}
STOP = {"event": "stop", "ts": 1100.0, "uptime_s": 100.0, "terminals": {}, "dropped": 2}
ROWS = [
    START,
    *(request(1000.0 + 10 * n) for n in range(6)),
    refused(1061.0),
    request(
        1062.0, terminal="expired", code="read_gap", limit="read_gap", limits_fired=["read_gap"]
    ),
    *(MOVE, HELD, STOP),
]


def report(*arguments: str, given: bytes = b"") -> Result:
    return CliRunner().invoke(main, ["report", *arguments], input=given)


@pytest.fixture
def journal(tmp_path: Path) -> str:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(b"".join(map(line, ROWS)))
    return str(path)


def document(*arguments: str, given: bytes = b"") -> dict[str, Any]:
    done = report(*arguments, "--format", "json", given=given)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["schema"], found["schema_version"]) == ("narwhal.report", 1)
    return found


# Out


def test_a_table_for_people(journal: str) -> None:
    done = report(journal)
    assert done.exit_code == 0
    text = done.stdout
    assert f"journal    {journal}: 12 lines; 1 starts, 1 stops\n" in text
    assert "lost       2 rows that the router could not write\n" in text
    assert "time       1970-01-01 00:16:40 to 1970-01-01 00:17:43, 1 min 3 s\n" in text
    assert "targets    end of prefill within 2 s, 0.1 s between tokens\n" in text
    assert "attained   75.0 % of 8 that count; 100 % of the 6 completed; TTFT met 100 %" in text
    rows = [line_.split() for line_ in text.splitlines()]
    assert ["refused", "projected_ttft", "-", "1"] in rows
    assert ["expired", "read_gap", "read_gap", "1"] in rows
    assert ["read_gap", "1"] in rows
    assert ["completed", "6", "75.0", "%", "100", "%", "100", "%", *["1", "s"] * 5] in rows
    assert "d0      prefill  moved    consolidation  1P2D -> 2P1D  1P2D: too few" in text
    assert "serving -> held  suspected  3 failures in a row: stream" in text
    titles = re.findall(r"\n\n(.+)", text)
    assert titles == [
        *("How requests ended", "Times", "Where the time went", "Engines", "Not completed"),
        "Limits that fired, retried requests included",
        "Over time, by 2 s (UTC)",
        *("Moves of roles", "Changes of engines", "The router"),
    ]


def test_json_for_programs(journal: str) -> None:
    found = document(journal, "--interval", "1m")
    assert found["attained"] == {"of": 8, "count": 6, "share": 0.75}
    assert found["terminals"]["refused"]["requests"] == 1
    assert found["times_s"]["prefill_ttft"] == {
        "count": 7,
        "mean": 0.5,
        "p50": 0.5,
        "p90": 0.5,
        "p95": 0.5,
        "p99": 0.5,
        "most": 0.5,
    }
    assert [(each["at"], each["requests"]) for each in found["windows"]] == [
        (960.0, 2),
        (1020.0, 6),
    ]
    assert found["windows"][1]["terminals"] == {"completed": 4, "refused": 1, "expired": 1}
    assert found["engines"]["d0"]["decodes"] == 7
    assert found["not_completed"][0]["requests"] == 1
    assert found["role_changes"][0] == {k: v for k, v in MOVE.items() if k != "event"}
    assert found["engine_states"][0]["from"] == "serving"
    assert (found["dropped"], found["moves"], found["window_s"]) == (2, 1, 60.0)


def test_a_page_stands_alone(journal: str, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    done = report(journal, "--format", "html", "--out", str(out), "--interval", "10s")
    assert (done.exit_code, done.output) == (0, "")
    drawn = out.read_text(encoding="utf-8")
    root = ET.fromstring(drawn.removeprefix("<!DOCTYPE html>"))  # noqa: S314 - our own text
    shown = ["".join(each.itertext()) for each in root.iter(f"{SVG}text")]
    titles = ("Attained", "Requests", "Tokens generated", "Time to first token")
    for title in (*titles, "Time between tokens", "Engines by role"):
        assert shown.count(title) == 1
    assert shown.count("target") == 1, "in the legend"
    summaries = ["".join(each.itertext()) for each in root.iter("summary")]
    assert "Moves of roles: 1" in summaries
    assert not re.search(r"<script|url\(|@import|href|src=", drawn)
    assert "prefers-color-scheme: dark" in drawn


def test_a_page_without_moves_shows_the_queue(tmp_path: Path) -> None:
    rows = [START, request(spent_s={"queue": 0.5, "decode": 0.5}), request(1003.0)]
    drawn = report("-", "--format", "html", given=b"".join(map(line, rows))).stdout
    assert "Wait in the queue" in drawn
    assert "Engines by role" not in drawn


@pytest.mark.parametrize("form", ["table", "json", "html"])
def test_names_are_only_text(form: str) -> None:
    evil = "<b>&\"'\x1b[2J"
    rows = [
        START | {"model": evil},
        request(terminal="failed", code=evil, attempts=[{"decode": evil}]),
        *(MOVE | {field: evil} for field in ("engine", "reason", "split", "to", "verdict")),
        HELD | {"engine": evil, "to": evil, "from": evil, "cause": evil, "reason": evil},
    ]
    done = report("-", "--format", form, given=b"".join(map(line, rows)))
    assert done.exit_code == 0
    assert "\x1b" not in done.stdout
    if form == "html":
        assert "<b>" not in done.stdout
        ET.fromstring(done.stdout.removeprefix("<!DOCTYPE html>"))  # noqa: S314 - our own text


@pytest.mark.parametrize("form", ["table", "json", "html"])
def test_an_empty_journal_is_a_report(form: str) -> None:
    done = report("-", "--format", form)
    assert done.exit_code == 0
    if form == "table":
        assert done.stdout.split()[-2:] == ["requests", "none"]


# In


def test_several_files_compressed_or_not_are_one_journal(journal: str, tmp_path: Path) -> None:
    packed = tmp_path / "requests.jsonl.1"
    packed.write_bytes(gzip.compress(line(START) + line(request(900.0))))
    found = document(str(packed), journal, "-", given=gzip.compress(line(request(1070.0))))
    assert found["requests"] == 10
    assert found["files"] == [str(packed), journal, "(standard input)"]


@pytest.mark.parametrize("broken", ["cut", "spoilt"])
def test_a_compressed_file_that_breaks_off_counts_up_to_there(broken: str, tmp_path: Path) -> None:
    rows = [line(request(1000.0 + n, tpot_s=n / 7)) for n in range(500)]
    data = bytearray(gzip.compress(line(START) + b"".join(rows)))
    if broken == "cut":
        del data[len(data) // 2 :]
    else:
        data[-8] ^= 0xFF  # its checksum
    path = tmp_path / "j.gz"
    path.write_bytes(data)
    found = document(str(path))
    assert 0 < found["requests"] <= 500
    assert (found["bad"], found["torn"]) == (1, 0) or found["torn"] == 1
    assert "the compressed file ends or breaks here" in found["bad_lines"][-1]["why"]


def test_bad_lines_are_named_and_the_rest_counts(journal: str) -> None:
    with Path(journal).open("ab") as file:
        file.write(b"{]\n" + line(request(1080.0)) + b'{"event": "requ')
    done = report(journal)
    assert done.exit_code == 0
    assert f"bad lines  1: {journal}:13 (" in done.stdout
    assert "1 cut off at the end" in done.stdout
    assert document(journal)["requests"] == 9


def test_a_line_without_end_is_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(report_files, "MOST_LINE", 2000)
    path = tmp_path / "j"
    path.write_bytes(line(START) + b"x" * 9001 + b"\n" + line(request()) + b"y" * 2000)
    found = document(str(path))
    assert (found["requests"], found["lines"]) == (1, 4)
    assert [(each["number"], each["why"]) for each in found["bad_lines"]] == [
        (2, "longer than 2000 bytes"),
        (4, "longer than 2000 bytes"),
    ]


def test_options_leave_requests_out_and_say_so(journal: str) -> None:
    done = report(journal, "--since", "1970-01-01T00:16:50", "--until", "1040")
    assert "8 requests" not in done.stdout
    assert "5 requests left out by the options" in done.stdout
    assert document(journal, "--since", "1970-01-01T01:16:50+01:00")["requests"] == 7
    assert document(journal, "--engine", "d0", "--route", "chat")["requests"] == 7
    assert document(journal, "--model", "other")["requests"] == 0
    assert document(journal, "--ttft", "0.4")["attained"]["count"] == 0
    scoped = document(journal, "--ttft", "0.52", "--tpot", "1", "--ttft-scope", "first_token")
    assert scoped["targets"] == [{"ttft_s": 0.52, "tpot_s": 1.0, "ttft_scope": "first_token"}]
    assert scoped["attained"]["count"] == 0


def test_a_moment_may_be_said_to_be_so_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 10_000.0)
    rows = b"".join(map(line, [request(6399.0), request(6401.0)]))
    assert document("-", "--since", "1h", given=rows)["requests"] == 1
    assert document("-", "--since", "2.5h", "--until", "60m", given=rows)["requests"] == 1


# What cannot be done


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--since", "soon"), "'soon' is no moment; write 2026-03-01T12:00:00"),
        (("--interval", "0"), "'0' is no stretch of time; write 90s, 5m, 1h or 2d"),
        (("--interval", "-5"), "no stretch of time"),
        (("--interval", "nan"), "no stretch of time"),
        (("--ttft", "0"), "--ttft"),
    ],
)
def test_options_that_make_no_sense(journal: str, arguments: tuple[str, ...], why: str) -> None:
    done = report(journal, *arguments)
    assert done.exit_code == 2
    assert why in " ".join(done.stderr.split())


def test_errors_say_what_to_do(journal: str, tmp_path: Path) -> None:
    def said(*arguments: str, given: bytes = b"") -> str:
        done = report(*arguments, given=given)
        assert done.exit_code == 1
        assert done.stdout == ""
        return done.stderr

    absent = str(tmp_path / "absent")
    assert f"{absent} cannot be read (No such file or directory); name a file" in said(absent)
    assert "Is a directory" in said(str(tmp_path))
    assert "give - only once" in said("-", "-")
    wrong = said("-", given=b'{"schema": "narwhal.fleet"}\n')
    assert "no line of - is a row of a journal: (standard input):1 (" in wrong
    later = said("-", given=line(START | {"schema": 2}))
    assert "-: the journal's rows are of format 2, and this version reads 1" in later
    assert "at most 10000 can be made; give a longer one" in said(journal, "--interval", "0.001")
    assert "--out: " in said(journal, "--out", str(tmp_path / "no" / "file"))


# Words


def test_times_have_the_unit_that_suits() -> None:
    assert [seconds(each) for each in (None, 0.0, 0.00123, 0.9996, 12.34, 12345.6)] == [
        *("-", "0 ms", "1.23 ms", "1 s", "12.3 s", "12346 s"),
    ]
    assert [span(each) for each in (0.5, 59.7, 60, 61, 3600, 5400, 86400, 100_000)] == [
        *("0.5 s", "1 min", "1 min", "1 min 1 s", "1 h", "1 h 30 min", "1 d", "1 d 3 h"),
    ]
    assert moment(1e30) == f"{1e30:.0f}"
