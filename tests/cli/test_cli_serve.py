"""`serve` and `demo` as processes: real sockets, real signals, the official client."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from processes import PATIENCE_S, Command, buffering, run, write_fleet

pytestmark = pytest.mark.sockets

CHAT = [{"role": "user", "content": "Say something"}]


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=30)


@pytest.fixture(scope="module")
def demo() -> Iterator[str]:
    with Command("demo", "--port", "0") as command:
        yield command.url()
        command.signal(signal.SIGINT)
        assert command.end()[0] == 0


@pytest.fixture(scope="module")
def engines() -> Iterator[list[str]]:
    """Two emulated engines: slow enough for a stream of several seconds."""
    argument = ("--base-port", "0", "--decode", "0.05,0,0", "--prefill", "0,0,0")
    with Command("emulate", "--engines", "2", *argument) as command:
        urls = [command.url(), command.url()]
        yield urls
        command.signal(signal.SIGTERM)
        assert command.end()[0] == 0


# The official client against the demo


def test_chat_whole(demo: str) -> None:
    with client(demo) as api:
        answer = api.chat.completions.create(model="demo", messages=CHAT, max_tokens=8)  # type: ignore[arg-type]  # a plain dict
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_chat_streamed_equals_whole(demo: str) -> None:
    with client(demo) as api:
        whole = api.chat.completions.create(model="demo", messages=CHAT, max_tokens=12)  # type: ignore[arg-type]  # a plain dict
        stream = api.chat.completions.create(  # type: ignore[call-overload]  # a plain dict
            model="demo",
            messages=CHAT,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage


def test_completion_whole_and_streamed(demo: str) -> None:
    with client(demo) as api:
        whole = api.completions.create(model="demo", prompt="Once", max_tokens=6)
        stream = api.completions.create(model="demo", prompt="Once", max_tokens=6, stream=True)
        text = "".join(chunk.choices[0].text for chunk in stream)
    assert whole.object == "text_completion"
    assert text == whole.choices[0].text


def test_models_and_errors(demo: str) -> None:
    with client(demo) as api:
        assert [model.id for model in api.models.list()] == ["demo"]
        with pytest.raises(openai.NotFoundError) as missing:
            api.completions.create(model="other", prompt="x")
        assert missing.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as bad:
            api.completions.create(model="demo", prompt="x", n=2)
        assert bad.value.param == "n"


def test_a_stream_that_breaks_off_raises_in_the_client(demo: str) -> None:
    with client(demo) as api:
        stream = api.completions.create(
            model="demo", prompt="fault=decode:tokens(3);rst", max_tokens=9, stream=True
        )
        with pytest.raises((openai.APIError, httpx.RemoteProtocolError)):
            list(stream)
        with pytest.raises(openai.InternalServerError):
            api.completions.create(model="demo", prompt="fault=decode:tokens(3);rst", max_tokens=9)


# Serving


def test_a_stream_outlives_the_first_signal(engines: list[str], tmp_path: Path) -> None:
    fleet = write_fleet(tmp_path / "fleet.json", engines)
    journal = tmp_path / "journal.jsonl"
    argument = ("--fleet", str(fleet), "--port", "0", "--journal", str(journal))
    with Command("serve", *argument) as command:
        url = command.url()
        with client(url) as api:
            stream = api.completions.create(
                model="emulated", prompt="x", max_tokens=20, stream=True
            )
            texts = [next(stream).choices[0].text]
            command.signal(signal.SIGTERM)
            while httpx.get(f"{url}/ready").status_code != 503:
                pass
            assert httpx.get(f"{url}/health").status_code == 200
            with pytest.raises(openai.InternalServerError) as late:
                api.completions.create(model="emulated", prompt="x")
            assert late.value.code == "draining"
            texts += [chunk.choices[0].text for chunk in stream]
        assert len(texts) == 20
        code, _, err = command.end()
    assert (code, err.count("Traceback")) == (0, 0)
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [row["event"] for row in rows] == ["start", "router", "request", "request", "stop"]
    assert rows[1]["change"] == "draining"
    assert sorted(r["terminal"] for r in rows[2:4]) == ["completed", "rejected"]


def test_at_the_bound_a_stream_is_told_and_the_exit_is_clean(
    engines: list[str], tmp_path: Path
) -> None:
    fleet = write_fleet(tmp_path / "fleet.json", engines)
    argument = ("--fleet", str(fleet), "--port", "0", "--graceful-timeout", "0.3")
    with Command("serve", *argument) as command:
        ask = {"model": "emulated", "prompt": "x", "max_tokens": 2000, "stream": True}
        with httpx.stream("POST", f"{command.url()}/v1/completions", json=ask) as answer:
            pieces = answer.iter_bytes()
            body = next(pieces)
            command.signal(signal.SIGTERM)
            with pytest.raises(httpx.RemoteProtocolError):
                for piece in pieces:
                    body += piece
        assert b'"code":"shutdown"' in body
        assert b"[DONE]" not in body
        assert command.end()[0] == 0


def test_a_second_signal_ends_at_once(engines: list[str], tmp_path: Path) -> None:
    fleet = write_fleet(tmp_path / "fleet.json", engines)
    with Command("serve", "--fleet", str(fleet), "--port", "0") as command:
        ask = {"model": "emulated", "prompt": "x", "max_tokens": 2000, "stream": True}
        with httpx.stream("POST", f"{command.url()}/v1/completions", json=ask) as answer:
            pieces = answer.iter_bytes()
            next(pieces)
            command.signal(signal.SIGINT)
            while httpx.get(f"{answer.url.copy_with(path='/ready')}").status_code != 503:
                pass
            command.signal(signal.SIGINT)
            with pytest.raises(httpx.RemoteProtocolError):
                list(pieces)
        code, _, err = command.end()
    assert code == 0
    assert "second signal" in err


def test_a_greeting_that_finds_no_room_keeps_nobody_from_being_served(
    engines: list[str], tmp_path: Path
) -> None:
    fleet = write_fleet(tmp_path / "fleet.json", engines)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = tmp_path / "log"
    with Path("/dev/full").open("w") as full, log.open("w") as err:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "narwhal", "serve", "--fleet", fleet, "--port", str(port)],
            stdout=full,
            stderr=err,
            env=buffering(),
        )
    try:
        while process.poll() is None:
            with contextlib.suppress(httpx.ConnectError):
                assert httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200
                break
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()
    finally:
        process.kill()


# What cannot be served


def test_a_port_in_use(engines: list[str], tmp_path: Path) -> None:
    fleet = write_fleet(tmp_path / "fleet.json", engines)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for command in (("serve", "--fleet", str(fleet)), ("demo",)):
            code, _, err = run(*command, "--port", port)
            assert code == 1
            assert err == (
                f"narwhal-trio: cannot listen on 127.0.0.1:{port}: Address already in use; "
                "choose another --host or --port\n"
            )


@pytest.mark.parametrize("content", [None, "{", '{"schema": "narwhal.fleet"}'])
def test_an_unusable_fleet_file(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "fleet.json"
    if content is not None:
        path.write_text(content)
    code, _, err = run("serve", "--fleet", str(path), "--port", "0")
    assert code == 1
    assert "fleet.json" in err
    assert "Traceback" not in err


def test_settings_that_cannot_be_served(tmp_path: Path) -> None:
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    fleet = write_fleet(tmp_path / "fleet.json", urls, admission="predictive")
    code, _, err = run("serve", "--fleet", str(fleet), "--port", "0")
    assert (code, "profiles.json" in err, "Traceback" in err) == (1, True, False)
    fleet = write_fleet(tmp_path / "fleet.json", urls, max_connections=10)
    code, _, err = run("serve", "--fleet", str(fleet), "--port", "0", "--max-concurrent", "11")
    assert (code, "serving.max_connections (10)" in err) == (1, True)
    journal = tmp_path / "no" / "journal.jsonl"
    code, _, err = run("serve", "--fleet", str(fleet), "--port", "0", "--journal", str(journal))
    assert (code, "journal" in err, "Traceback" in err) == (1, True, False)


def test_engines_that_are_not_there_are_a_clear_error(tmp_path: Path) -> None:
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    fleet = write_fleet(tmp_path / "fleet.json", urls)
    with Command("serve", "--fleet", str(fleet), "--port", "0") as command:
        ask = {"model": "emulated", "prompt": "x"}
        answer = httpx.post(f"{command.url()}/v1/completions", json=ask)
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "engine_unreachable"
        command.signal(signal.SIGTERM)
        assert command.end()[0] == 0
