"""The page about traces: its settings, its message and its program."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest
from docs_pages import DOCS, ROOT, code_blocks, section, table

from narwhal.config.settings import default_of
from narwhal.simulate.replay.outputs import UNKNOWN
from narwhal.simulate.replay.traces import Format, TraceError, read_trace
from narwhal.simulate.replay.workload import SMOOTH, Shape

PAGE = (DOCS / "traces.md").read_text(encoding="utf-8")
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:{number // 60:02}:{number % 60:02},{100 + number},{1 + number % 7}\n"
    for number in range(600)
)


def test_the_settings_are_those_of_a_shape() -> None:
    defaults: dict[str, str] = {}
    for row in table(PAGE, "## Shapes"):
        names = re.findall(r"`(\w+)`", row[0])
        defaults |= dict(zip(names, row[1].split(", "), strict=True))
    fields = {field.name: default_of(field) for field in attrs.fields(Shape)}
    assert defaults.keys() == fields.keys()
    for name, default in fields.items():
        if default in (None, (), {}):
            assert defaults[name] in {"none", "all", "its own"}
        else:
            assert float(defaults[name]) == default
    assert f"; {SMOOTH} suits" in PAGE
    assert f"or {UNKNOWN}" in PAGE


def test_the_formats_are_those_that_are_read() -> None:
    assert [row[0].strip("`") for row in table(PAGE, "## Files")] == [*Format]


def test_the_message_is_real(tmp_path: Path) -> None:
    file = tmp_path / "code.csv"
    file.write_text(TRACE.splitlines()[0] + "\n2023-11-16,1,1\n2023-11-16,1.5,1\n")
    with pytest.raises(TraceError) as caught:
        read_trace(file)
    (shown,) = code_blocks(section(PAGE, "## Files"))
    assert caught.value.problems == (shown.strip(),)


def test_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("code", "conv"):
        (tmp_path / f"{name}.csv").write_text(TRACE)
    monkeypatch.chdir(tmp_path)
    (program,) = code_blocks(section(PAGE, "## In Python"))
    exec(compile(program, "traces.md", "exec"), {})  # noqa: S102 - the page's own program
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 4 * 0.8 * 14.5 * 100
    assert {line.split()[1] for line in lines} == {"code", "conv"}
    assert lines[0] == "0.0 code 300 5"


def test_the_fleets_are_there() -> None:
    for name in re.findall(r"`(configs/[^`]+)`", PAGE):
        assert (ROOT / name).exists(), name
