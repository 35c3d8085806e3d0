"""Names, numbers and refusals that the pages state, against where they come from."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from docs_pages import DOCS, ROOT, section, table
from trio.testing import MockClock

import narwhal
from narwhal import open_router
from narwhal.engine import clients
from narwhal.fleet import trust
from narwhal.model import FailureClass, Phase
from narwhal.net import MemoryNetwork, Server, pool
from narwhal.net.server import ServerOptions
from narwhal.router import errands, life, service, tracing
from narwhal.simulate.overload import Arm, Experiment
from narwhal.telemetry import Telemetry, facade, journal
from narwhal.testing import fleet_config

SOURCES = Path(narwhal.__file__).parent
PACKAGES = "|".join(path.parent.name for path in SOURCES.glob("*/__init__.py"))
ARCHITECTURE = (DOCS / "architecture.md").read_text(encoding="utf-8")
HTTP = (DOCS / "http-api.md").read_text(encoding="utf-8")
ENGINES = (DOCS / "engines.md").read_text(encoding="utf-8")


def words(page: str) -> str:
    """A page on one line, as sentences go over several."""
    return " ".join((DOCS / page).read_text(encoding="utf-8").split())


def test_the_layers_are_those_of_the_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = project["tool"]["importlinter"]["contracts"][0]
    there = []
    for layer in contract["layers"]:
        names = [name for name in re.split(r"[ |]+", layer) if not name.startswith(("(", "_"))]
        there += [set(names)] if names else []
    rows = [set(re.findall(r"`(\w+)`", row[0])) for row in table(ARCHITECTURE, "## Layers")]
    assert rows == there


def test_pure_packages_are_those_of_the_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = project["tool"]["importlinter"]["contracts"][1]
    pure = {
        name
        for row in table(ARCHITECTURE, "## Layers")
        if row[2] == "pure"
        for name in re.findall(r"`(\w+)`", row[0])
    }
    assert {f"narwhal.{name}" for name in pure} == set(contract["source_modules"])


def test_every_file_that_is_named_is_there() -> None:
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        named = re.findall(rf"`((?:{PACKAGES})/[\w/]+\.py)`", text)
        assert [name for name in named if not (SOURCES / name).exists()] == []
    server = section(ARCHITECTURE, "## Why Hypercorn is subclassed")
    ours = set(re.findall(r"^\| `(\w+\.py)` \|", server, re.MULTILINE))
    there = {path.name for path in (SOURCES / "net/server").glob("*.py")}
    assert ours == there - {"__init__.py", "options.py"}


def test_the_extensions_are_those_of_the_server() -> None:
    names = {
        row[0].strip("`") for row in table(ARCHITECTURE, "### What the server offers applications")
    }
    seen: set[str] = set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope["extensions"])

    async def main() -> None:
        network = MemoryNetwork()
        async with trio.open_nursery() as nursery:
            await nursery.start(Server(app).serve, [network.listen("x", 80)])
            stream = await network.connect("x", 80)
            await stream.send_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            await stream.receive_some()
            stream.close()
            nursery.cancel_scope.cancel(reason="seen")

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert names == seen


REFUSED = {
    400: b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n",
    408: b"GET / HTTP/1.1\r\nhost:",
    414: b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    431: b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    501: b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
    505: b"GET / HTTP/1.2\r\nhost: x\r\n\r\n",
}


def test_the_server_s_own_refusals_are_all_in_the_table() -> None:
    found = {
        int(status)
        for source in (SOURCES / "net/server").glob("*.py")
        for status in re.findall(r"Refusal\((\d{3})", source.read_text(encoding="utf-8"))
    }
    assert {int(row[0]) for row in table(HTTP, "## Connections")} == found == set(REFUSED)


@pytest.mark.parametrize("status", REFUSED)
def test_the_server_refuses_by_itself(status: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("not for the application")

    async def main() -> None:
        network = MemoryNetwork()
        async with trio.open_nursery() as nursery:
            await nursery.start(Server(app).serve, [network.listen("x", 80)])
            stream = await network.connect("x", 80)
            await stream.send_all(REFUSED[status])
            answer = b""
            while data := await stream.receive_some():
                answer += data
            stream.close()
            nursery.cancel_scope.cancel(reason="answered")
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        assert b'"code": "http_%d"' % status in answer
        assert b"narwhal" not in answer

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_the_server_s_numbers() -> None:
    options, text = ServerOptions(), words("http-api.md")
    assert f"closed after {options.keep_alive_timeout:g} s without a request" in text
    assert f"complete within {options.header_timeout:g} s" in text
    assert f"at most {options.max_header_bytes // 1024} KiB, {options.max_headers} header" in text
    assert f"a target of {options.max_uri_bytes // 1024} KiB" in text
    assert f"more than {options.max_pipelined_bytes // 1024} KiB ahead" in text
    assert f"the last {facade.RECENT_OUTCOMES} requests" in text


def test_the_numbers_of_connections_and_endings() -> None:
    text = words("engines.md")
    assert f"counting tokens (at most {clients._COUNTING_CONNECTIONS})" in text
    assert f"idle for {pool.IDLE_EXPIRY:g} s is not used again" in text
    text = words("cancellation.md")
    assert (service._LAST_WORDS_S, "three quarters of a second" in text) == (0.75, True)
    assert (life.RESPOND_BOUND_S, errands.ERRAND_BOUND_S) == (1.0, 1.0)
    assert f"{errands.MOST_AT_ONCE} such tasks" in text
    assert f"a buffer of {journal.BUFFERED_ROWS};" in words("journal.md")


def test_trust_is_lost_and_won_as_the_page_says() -> None:
    failed, busy = (row for row in table(ENGINES, "## Trust")[:2])
    pauses = [int(number) for number in re.findall(r"\b\d+\b", failed[1])]
    assert pauses == [1, 2, 4, 8, 16, trust.LONGEST_PAUSE_S]
    standing, now = trust.Trust(), 0.0
    for pause in pauses:
        standing.failed("d0", Phase.DECODE, FailureClass.STREAM, now)
        assert standing.doubtful("d0", Phase.DECODE, now + pause - 0.01)
        now += pause
        assert not standing.doubtful("d0", Phase.DECODE, now)
        standing.placed("d0", Phase.DECODE, now)
        assert standing.doubtful("d0", Phase.DECODE, now), "one trial, and the others avoid it"
    assert not standing.doubtful("d0", Phase.PREFILL, 0.5)
    standing.succeeded("d0", Phase.DECODE)
    assert not standing.doubtful("d0", Phase.DECODE, now)
    assert "quarter of a second" in busy[1]
    standing.failed("d0", Phase.DECODE, FailureClass.OVERLOAD, now)
    assert not standing.doubtful("d0", Phase.DECODE, now + 0.25)
    standing.failed("d0", Phase.DECODE, FailureClass.OVERLOAD, now, retry_after=99.0)
    assert standing.doubtful("d0", Phase.DECODE, now + 29)
    assert not standing.doubtful("d0", Phase.DECODE, now + 30)
    standing.failed("d0", Phase.DECODE, FailureClass.CONNECTION, now)
    assert all(standing.doubtful("d0", phase, now) for phase in trust.Trust.PHASES)


def test_the_routes_are_those_of_the_application() -> None:
    named = [
        route
        for row in table(HTTP, "## Routes")
        for route in re.findall(r"`([A-Z]+ /[\w/.{}]+)`", row[0])
    ]

    async def main() -> None:
        async with open_router(fleet_config()) as router:
            app: Any = router.app
            served = {**app.routes, "/narwhal/ui": "GET"}  # a page, which no program asks for
            assert sorted(named) == sorted(f"{way} {path}" for path, way in served.items())

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_the_state_document_s_keys() -> None:
    telemetry = Telemetry(
        engines=["n0"], ttft_s=1.0, tpot_s=1.0, version="9.9", model="m", started=0.0
    )
    state = msgspec.json.decode(telemetry.state(1.0))
    rows = table(HTTP, "## The state document")
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row[0])} - {"narwhal"} == set(
        state
    )
    (admission,) = (row[1] for row in rows if row[0] == "`admission`")
    assert set(re.findall(r"`(\w+)`", admission)) == set(state["admission"])
    assert f"last {facade.RECENT_OUTCOMES} requests" in words("http-api.md")


def test_overload_is_measured_as_the_page_says() -> None:
    page = (DOCS / "admission.md").read_text(encoding="utf-8")
    experiment, text = Experiment(), words("admission.md")
    capacity = experiment.capacity
    assert f"Here that is {capacity.rate:.1f} requests/s: two prefill engines at" in text
    assert f"{capacity.prefill_s:.4f} s a prompt" in text
    assert f"{capacity.seats} requests each would do {capacity.decode_rate:.1f}." in text
    assert f"after {experiment.warm_up_s:g} s under load" in text
    rows = table(page, "## Under overload")
    assert len(rows) == len(Arm) * len(experiment.loads)
    for row, point in zip(rows, experiment.points, strict=True):
        assert row[1:3] == [f"{point.load:g}", f"{point.load * capacity.rate:.1f}"]
    decode_bound = Experiment(prefill=9, decode=1, requests=600).capacity
    assert f"capacity of {decode_bound.rate:.1f} requests/s" in text


def test_the_attributes_of_spans_are_those_of_the_code() -> None:
    names = r"(?:gen_ai|http|url|error|narwhal)(?:\.[a-z_]+)+"
    source = (SOURCES / "telemetry/spans.py").read_text(encoding="utf-8")
    page = (DOCS / "tracing.md").read_text(encoding="utf-8")
    rows = [row[0] for number in (0, 1) for row in table(page, "## The spans", number)]
    named = {name for row in rows for name in re.findall(f"`({names})`", row)}
    assert named == set(re.findall(f'"({names})"', source))
    listed = re.findall(r"[├└]─ (\w+)", page)
    assert {*listed} == {"attempt", *Phase}
    assert f"in batches of {tracing._BATCH_REQUESTS} requests" in words("tracing.md")
    assert f"down to every {tracing._LONGEST_S:g} s" in words("tracing.md")
