"""`narwhal-trio top`: frames, rates, routers that come and go, and a real terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import attrs
import msgspec
import pytest
import trio
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from trio.testing import MockClock

from narwhal.cli.main import main
from narwhal.cli.reach import Reach
from narwhal.cli.top_call import PATH, StateCall, Unreachable
from narwhal.cli.top_command import Watch, watch
from narwhal.cli.top_rates import History, median_and_most
from narwhal.cli.top_state import State, parse_state
from narwhal.cli.top_view import Frame, draw, fitted

from processes import PATIENCE_S

ENGINE: dict[str, Any] = {
    "iid": "p0",
    "role": "prefill",
    "pin": True,
    "state": "serving",
    "state_s": None,
    "reason": "",
    "suspicion": "trusted",
    "seat_limit": {"prefill": 4, "decode": 0},
    "residents": {"prefill": 3, "decode": 0},
    "reserved_tokens": 2048,
    "backlog_s": 1.5,
    "pace": {"prefill": 1.25},
}
DECISION = {
    "ago_s": 2.0,
    "verdict": "held",
    "rule": "none",
    "gate": "cooldown",
    "split": "2P2D",
    "loads": {"prefill": 0.25, "decode": None},
    "reason": "2P2D: none; held by cooldown",
}
STATE: dict[str, Any] = {
    "version": "9.9",
    "model": "tiny",
    "slo": {"ttft_s": 2.0, "ttft_scope": "prefill", "tpot_s": 0.1},
    "uptime_s": 100.0,
    "ready": True,
    "not_ready": [],
    "draining": False,
    "alerts": [],
    "requests": {
        "received": 50,
        "in_flight": 5,
        "waiting": 1,
        "retained": 6,
        "terminals": {"completed": 40, "failed": 5, "refused": 0},
    },
    "limits_fired": {"read_gap": 3, "queue": 0},
    "attempts": {"total": 50, "retries": 2, "retry_credits": 7.5},
    "tokens": {"prompt": 1000, "completion": 500},
    "roles": {
        "preset": "reference",
        "advisory": True,
        "decision": DECISION,
        "proposal": None,
        "flips": [
            {"ago_s": n, "iid": f"d{n}", "to": "prefill", "rule": "consolidation", "split": "3P1D"}
            for n in range(9)
        ],
    },
    "engines": [
        ENGINE,
        ENGINE
        | {"iid": "d0", "role": "decode", "pin": False, "state": "ejected", "state_s": 12.0}
        | {"reason": "3 failures in a row", "suspicion": "avoided for decode"},
    ],
    "recent": [
        {"terminal": "completed", "prefill_ttft_s": 0.5, "tpot_s": 0.05, "queue_s": None},
        {"terminal": "completed", "prefill_ttft_s": 2.5, "first_token_ttft_s": 3.0, "tpot_s": 0.06},
    ],
}


def state(**changes: Any) -> State:
    return parse_state(json.dumps(STATE | changes).encode())


def at(uptime_s: float, received: int, **changes: Any) -> State:
    """A router that has completed all that it received."""
    ends = {"received": received, "terminals": {"completed": received}}
    return state(uptime_s=uptime_s, requests=STATE["requests"] | ends, **changes)


def drawn(frame: Frame, width: int = 130) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(draw(frame, width))
    text = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    return "\n".join(line.rstrip() for line in text.splitlines())


def frame(**changes: Any) -> Frame:
    return Frame(url="http://router", state=state(**changes))


# Frames


def crowd(engines: int, *, ill: frozenset[int] = frozenset(), **changes: Any) -> Frame:
    """A frame of a fleet of `engines`, named by number; `ill` ones are out of service."""
    one = STATE["engines"][0] | {"state": "serving", "reason": "", "suspicion": "trusted"}
    fleet = [
        one | {"iid": f"e{n:03}", "state": "ejected" if n in ill else "serving"}
        for n in range(engines)
    ]
    return frame(engines=fleet, **changes)


@pytest.mark.parametrize("width", [60, 90, 200])
@pytest.mark.parametrize("height", [24, 50, 100])
def test_a_fleet_is_shown_as_far_as_it_fits(width: int, height: int) -> None:
    ill = frozenset({0, 40, 63})
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    console.print(fitted(crowd(64, ill=ill, alerts=[]), console))
    text = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    shown = sum(line.startswith("e0") for line in text.splitlines())
    assert "moves" in text, "what stands below the engines is there"
    if shown < 64:
        assert f"and {64 - shown} more" in " ".join(text.split())
    assert len(text.splitlines()) <= height
    assert shown == 64 or len(text.splitlines()) >= height - 1
    assert all(f"e{n:03}" in text for n in sorted(ill)[:shown])


def test_a_fleet_that_fits_is_shown_whole() -> None:
    console = Console(file=io.StringIO(), width=90, height=100, force_terminal=False)
    console.print(fitted(crowd(64), console))
    assert "more" not in console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO


def test_a_frame_says_what_the_state_says() -> None:
    text = drawn(frame())
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "tiny ready up 1 min 40 s (narwhal-trio 9.9) http://router",
        "requests 5 in flight, 1 waiting, 6 held",
        "so far 50 received, 40 completed, 5 failed",
        "last 2 TTFT 500 ms, max 2.5 s (target 2 s); TPOT 50 ms, max 60 ms (target 100 ms)",
        "limits read_gap 3",
        "retries 2, 7.5 credits left",
        "ENGINE ROLE STATE PREFILL DECODE KV TOKENS BACKLOG PACE P/D NOTE",
        "p0 prefill (pin) serving 3/4 0 2048 1.5 s 1.25/-",
        "d0 decode ejected 12 s 3/4 0 2048 1.5 s 1.25/- 3 failures in a row; avoided for decode",
        "roles 2P2D; loads prefill 0.25, decode -, advisory",
        "decision 2P2D: none; held by cooldown (2 s ago)",
        "moves 9, the latest:",
        "4 s ago: d4 to prefill (consolidation), 3P1D",
    ):
        assert line in lines
    assert "d5 to prefill" not in text


def test_the_time_to_the_first_token_is_the_one_that_was_promised() -> None:
    scoped = frame(slo=STATE["slo"] | {"ttft_scope": "first_token"})
    assert "TTFT 3 s, max 3 s (target 2 s)" in drawn(scoped)


def test_what_is_wrong_comes_first() -> None:
    alerts = [f"it is {n} o'clock" for n in range(9)]
    lines = drawn(frame(ready=False, alerts=alerts)).splitlines()
    assert "NOT READY" in lines[0]
    assert lines[1:8] == [*(f"! {each}" for each in alerts[:6]), "! and 3 more: see /narwhal/state"]
    assert "DRAINING" in drawn(frame(draining=True))


def test_without_an_answer_the_last_one_stays() -> None:
    never = drawn(Frame(url="http://r", state=None, trouble="refused", since="12:00:00 (3 s)"))
    assert never.splitlines() == ["http://r", "unreachable since 12:00:00 (3 s): refused"]
    lost = drawn(attrs.evolve(frame(), trouble="refused", since="12:00:00 (3 s)"))
    assert lost.splitlines()[1] == "unreachable since 12:00:00 (3 s): refused"
    assert "50 received" in lost


@pytest.mark.parametrize("width", [40, 60, 75, 76, 100, 110, 200])
def test_no_terminal_is_too_narrow(width: int) -> None:
    text = drawn(frame(alerts=["x" * 300]), width)
    assert all(len(line) <= width for line in text.splitlines())
    for word in ("p0", "d0", "serving", "ejected", "3/4"):
        assert word in text
    assert ("KV TOKENS" in text, "NOTE" in text) == (width >= 76, width >= 110)


def test_names_are_only_text() -> None:
    evil = "[bold]x[/] \x1b[2J\x07"
    changed = {
        "version": evil,
        "model": evil,
        "alerts": [evil],
        "limits_fired": {evil: 1},
        "engines": [ENGINE | dict.fromkeys(("iid", "role", "state", "reason", "suspicion"), evil)],
        "requests": STATE["requests"] | {"terminals": {evil: 1}},
        "roles": STATE["roles"]
        | {"decision": DECISION | {"reason": evil, "split": evil, "loads": {evil: 1.0}}}
        | {"flips": [{"iid": evil, "to": evil, "rule": evil, "split": evil}]},
    }
    trouble = attrs.evolve(frame(**changed), trouble=evil, url=f"http://{evil}")
    text = drawn(trouble, 200)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert text.count("[bold]x[/]") >= 8, "no markup of rich's"


def test_a_router_that_says_less_or_more_is_shown_too() -> None:
    least = {"version": "1", "uptime_s": 1, "ready": False, "engines": [{"iid": "e"}], "new": {}}
    text = drawn(Frame(url="u", state=parse_state(json.dumps(least).encode())))
    assert "NOT READY" in text
    assert "roles" not in text
    for body in (b"{}", b"[]", b"", b"\xff", json.dumps(STATE | {"ready": 1}).encode()):
        with pytest.raises(ValueError, match=r"."):
            parse_state(body)


# Rates


def test_rates_are_over_the_last_seconds() -> None:
    history = History()
    assert history.rates is None
    for n in range(60):
        history.add(at(float(n), 100 * n, tokens={"completion": 700 * n}))
        assert (history.rates is None) == (n == 0)
    assert history.rates is not None
    assert history.rates.seconds == 10.0
    assert (history.rates.received, history.rates.tokens) == (100.0, 700.0)
    assert history.rates.terminals == {"completed": 100.0}
    text = drawn(Frame(url="u", state=at(1.0, 1), rates=history.rates))
    assert "per second  100.0 received, 100.0 completed; 700 tokens" in text


@pytest.mark.parametrize("after", [at(1.0, 90), at(99.0, 3)])
def test_a_restart_begins_anew(after: State) -> None:
    history = History()
    history.add(at(50.0, 40))
    history.add(at(98.0, 90))
    assert history.rates is not None
    history.add(after)
    assert history.rates is None


def test_limits_that_fired_just_now_are_told_apart() -> None:
    history = History()
    history.add(at(1.0, 0, limits_fired={"queue": 2}))
    history.add(at(2.0, 0, limits_fired={"queue": 2, "read_gap": 4}))
    assert history.rates is not None
    assert history.rates.limits == {"read_gap": 4}
    shown = state(limits_fired={"queue": 2, "read_gap": 4})
    assert "queue 2, read_gap 4 (+4)" in drawn(Frame(url="u", state=shown, rates=history.rates))


@given(st.lists(st.none() | st.floats(0, 100)))
def test_a_median_is_one_of_the_values(values: list[float | None]) -> None:
    known = [value for value in values if value is not None]
    found = median_and_most(values)
    if not known:
        assert found is None
        return
    assert found is not None
    assert found[1] == max(known)
    assert sum(value < found[0] for value in known) <= len(known) / 2
    assert sum(value > found[0] for value in known) <= len(known) / 2


# Watching


@attrs.define
class Script:
    """Answers, one after the other; a number is a wait for ever."""

    answers: list[State | str | None]
    asked_at: list[float] = attrs.field(factory=list)

    async def __call__(self) -> State:
        self.asked_at.append(trio.current_time())
        answer = self.answers.pop(0)
        if answer is None:
            await trio.sleep_forever()
        if isinstance(answer, State):
            return answer
        raise Unreachable(str(answer))


def test_it_outlives_the_router() -> None:
    script = Script([at(5.0, 1), "refused", "refused", None, at(0.5, 0), at(1.5, 9)])
    frames: list[Frame] = []

    async def body() -> None:
        began = trio.current_time()
        watched = Watch("u", script, 1.0, wall_clock=lambda: trio.current_time() - began)
        for _ in range(6):
            await watched.look()
            frames.append(watched.frame())
            await trio.sleep(1.0)

    trio.run(body, clock=MockClock(autojump_threshold=0))
    assert [each.trouble for each in frames] == [
        *(None, "refused", "refused", "no answer within 2 s", None, None),
    ]
    assert [each.since.partition(" ")[2] for each in frames[1:4]] == ["(0 s)", "(1 s)", "(4 s)"]
    assert len({each.since.partition(" ")[0] for each in frames[1:4]}) == 1
    assert frames[3].state is frames[0].state
    assert (frames[4].rates, frames[5].rates and frames[5].rates.received) == (None, 9.0)


@pytest.mark.parametrize("dumb", [False, True])
def test_what_cannot_be_drawn_on_in_place_gets_one_frame_after_the_other(
    dumb: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb" if dumb else "xterm")
    console = Console(file=io.StringIO(), width=100, force_terminal=dumb)
    script = Script([at(float(n), n) for n in range(9)])

    async def body() -> None:
        with trio.move_on_after(4.5):
            await watch(Watch("http://router", script, 2.0), console)

    trio.run(body, clock=MockClock(autojump_threshold=0))
    text = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    assert text.count("narwhal-trio 9.9") == 3
    assert "\x1b" not in text


# The command


def top(*arguments: str, env: dict[str, str | None] | None = None) -> Result:
    return CliRunner().invoke(main, ["top", *arguments], env=env)


@attrs.define
class Served:
    """An HTTP server on loopback that answers every request alike."""

    status: int = 200
    body: bytes = msgspec.json.encode(STATE)
    headers: dict[str, str] = attrs.field(factory=dict)
    seen: list[tuple[str, str | None]] = attrs.field(factory=list)


@contextmanager
def served(server: Served, port: int = 0) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.seen.append((self.path, self.headers["authorization"]))
            self.send_response(server.status)
            for name, value in server.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(server.body)))
            self.end_headers()
            self.wfile.write(server.body)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", port), Handler) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.server_address[1]}"
        finally:
            listener.shutdown()
            thread.join()


@pytest.mark.sockets
def test_one_frame_for_scripts() -> None:
    server = Served()
    with served(server) as url:
        done = top("--url", f"{url}/", "--once", env={"COLUMNS": "120"})
        assert done.exit_code == 0
        assert "tiny  ready  up 1 min 40 s (narwhal-trio 9.9)" in done.stdout
        assert "\x1b" not in done.stdout
    assert server.seen == [(PATH, None)]
    assert url in done.stdout


@pytest.mark.sockets
def test_a_token_is_sent_and_goes_nowhere_else() -> None:
    server, other = Served(), Served()
    named = ("--once", "--token-env", "ROUTER_TOKEN")
    with served(server) as url, served(other) as elsewhere:
        assert top("--url", url, *named, env={"ROUTER_TOKEN": "secret"}).exit_code == 0
        server.status, server.headers = 302, {"location": elsewhere + PATH}
        done = top("--url", url, *named, env={"ROUTER_TOKEN": "secret"})
    assert done.exit_code == 1
    assert f"no router of this kind ({PATH}: 302)" in done.stderr
    assert server.seen[0] == (PATH, "Bearer secret")
    assert other.seen == []


@pytest.mark.sockets
def test_errors_say_what_to_do() -> None:
    def said(*arguments: str, **env: str | None) -> str:
        done = top(*arguments, env=env)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "secret" not in done.stderr
        return done.stderr

    server = Served(status=401, body=b"{}")
    with served(server) as url:
        assert "it asks for a token (401); give the name" in said("--once", "--url", url)
        server.status, server.body = 403, b'{"error": {"message": "Use the address."}}'
        assert "Use the address. (403)" in said("--once", "--url", url)
        server.body = b"<html>"
        assert "it asks for a token (403)" in said("--once", "--url", url)
        server.status, server.body = 404, b"{}"
        assert f"no router of this kind ({PATH}: 404)" in said("--once", "--url", url)
        server.status = 200
        assert f"no router of this kind ({PATH})" in said("--once", "--url", url)
    gone = said("--once", "--url", url)
    assert f"no state from {url}: Connection refused" in gone
    assert "--url ftp://x: give the router's address" in said("--url", "ftp://x")
    env: dict[str, str | None] = {"NOT_SET": None}
    assert "variable NOT_SET, which is not set; export" in said("--token-env", "NOT_SET", **env)
    bad = {"ROUTER_TOKEN": "secret\nx: y"}
    assert "a key in an HTTP header cannot have" in said("--token-env", "ROUTER_TOKEN", **bad)


class Terminal:
    """The command in a terminal of 100 columns."""

    def __init__(self, *arguments: str) -> None:
        self._screen, end = pty.openpty()
        environ = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        self.process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "narwhal", "top", *arguments],
            stdin=end,
            stdout=end,
            stderr=end,
            env=environ | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
            start_new_session=True,
        )
        os.close(end)
        self.text = ""

    def until(self, text: str) -> None:
        """Read until there is some text after what was read before."""
        start, end = len(self.text), time.monotonic() + PATIENCE_S
        while text not in self.text[start:]:
            assert time.monotonic() < end, self.text
            if select.select([self._screen], [], [], 0.1)[0]:
                self.text += os.read(self._screen, 65536).decode()

    def end(self) -> int:
        code = self.process.wait(PATIENCE_S)
        while select.select([self._screen], [], [], 0.1)[0]:
            try:
                self.text += os.read(self._screen, 65536).decode()
            except OSError:  # the other end is closed
                break
        os.close(self._screen)
        return code


@pytest.fixture
def start() -> Iterator[Callable[..., Terminal]]:
    begun: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        begun.append(Terminal(*arguments))
        return begun[-1]

    yield start
    for terminal in begun:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.end()


@pytest.mark.sockets
def test_in_a_terminal_it_draws_in_place_outlives_the_router_and_ends_at_ctrl_c(
    start: Callable[..., Terminal],
) -> None:
    server = Served()
    with served(server) as url:
        terminal = start("--url", url, "--interval", "0.1")
        terminal.until("50 received")
    terminal.until("unreachable since")
    server.body = msgspec.json.encode(STATE | {"version": "10.0"})
    with served(server, int(url.rpartition(":")[2])):
        terminal.until("narwhal-trio 10.0")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
    assert "Traceback" not in terminal.text
    assert terminal.text.count("\x1b[?1049h") == terminal.text.count("\x1b[?1049l") == 1


def test_the_address_is_checked_before_anything_is_asked() -> None:
    call = StateCall(Reach("http://127.0.0.1:1").asker())
    with pytest.raises(Unreachable, match="refused"):
        call()
