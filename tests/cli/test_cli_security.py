"""`serve` as a process: its two listeners, TLS, tokens, and that no secret gets out of it."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from processes import Command, run, write_fleet

trustme = pytest.importorskip("trustme")
pytestmark = pytest.mark.sockets

ASK = {"model": "emulated", "prompt": "x", "max_tokens": 3}
# Each has a mark that nothing else has.
ENGINE_KEY = "mark-engine-key-0123456789"
CLIENT_KEYS = ("mark-client-key-one-0123456789", "mark-client-key-two-0123456789")
FILE_KEY = "mark-file-key-0123456789"
TOKEN = "mark-control-token-0123456789"
MARK = "mark-"


@pytest.fixture(scope="module")
def engines() -> Iterator[list[str]]:
    with emulated() as command:
        yield [command.url(), command.url()]


def emulated() -> Command:
    return Command("emulate", "--engines", "2", "--base-port", "0", "--api-key", ENGINE_KEY)


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", ENGINE_KEY)
    monkeypatch.setenv("CLIENT_KEYS", ",".join(CLIENT_KEYS))
    monkeypatch.setenv("CONTROL_TOKEN", TOKEN)


def fleet_file(
    folder: Path, urls: list[str], control: dict[str, Any] | None = None, **serving: Any
) -> Path:
    path = write_fleet(folder / "fleet.json", urls, **serving)
    document = json.loads(path.read_text())
    document["engine"] = {"engine_api_key_env": "ENGINE_KEY"}
    document["control"] = control or {}
    path.write_text(json.dumps(document))
    return path


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def urls_of(command: Command) -> tuple[str, str]:
    """Where the data routes are, and where the control routes are."""
    data = command.line(r"serving \S+ on (https?://\S+) with")[1]
    return data, command.line(r"control routes are on (https?://\S+)")[1]


def test_control_routes_on_a_listener_of_their_own(
    engines: list[str], environ: None, tmp_path: Path
) -> None:
    fleet = fleet_file(tmp_path, engines, {"token_env": "CONTROL_TOKEN"})
    argument = ("--fleet", str(fleet), "--port", "0", "--control-bind", "127.0.0.1:0")
    with Command("serve", *argument) as command:
        data, control = urls_of(command)
        assert httpx.post(f"{data}/v1/completions", json=ASK).status_code == 200
        assert httpx.post(f"{control}/v1/completions", json=ASK).status_code == 404
        assert httpx.get(f"{data}/narwhal/state").status_code == 404
        assert httpx.get(f"{control}/narwhal/state").status_code == 401
        assert httpx.get(f"{control}/narwhal/state", headers=bearer(TOKEN)).status_code == 200
        for url in (data, control):
            for path in ("/health", "/ready", "/metrics"):
                assert httpx.get(url + path).status_code == 200
        code, _, err = run("engines", "list", "--url", control)
        assert (code, "--token-env" in err, "invalid" in err) == (1, True, False)
        shown = ("--url", control, "--token-env", "CONTROL_TOKEN")
        code, out, err = run("engines", "drain", "e1", "--wait", *shown)
        assert (code, err) == (0, "")
        assert "drained" in out
        code, _, err = run("engines", "list", "--url", control, "--token-env", "NO_SUCH")
        assert (code, "--token-env names the environment variable NO_SUCH, which is" in err) == (
            1,
            True,
        )
        command.signal(signal.SIGTERM)
        assert command.end()[0] == 0


def test_a_control_port_in_use(engines: list[str], environ: None, tmp_path: Path) -> None:
    fleet = fleet_file(tmp_path, engines)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, err = run("serve", "--fleet", str(fleet), "--port", "0", "--control-bind", bind)
    line = f"narwhal-trio: cannot listen on {bind}: Address already in use; choose another "
    assert (code, err) == (1, f"{line}--control-bind (control.bind)\n")
    code, _, err = run("serve", "--fleet", str(fleet), "--control-bind", "9000")
    assert (code, "--control-bind must be HOST:PORT" in err) == (1, True)


def told(*reach: str) -> str:
    """Why commands get no answer, after the address; all say the same."""
    code, _, listed = run("engines", "list", *reach)
    failed, _, shown = run("top", "--once", *reach)
    assert (code, failed) == (1, 1)
    texts = {err.split(": ", 2)[2].rstrip() for err in (listed, shown)}
    (text,) = texts
    return text


def test_both_listeners_speak_tls(engines: list[str], environ: None, tmp_path: Path) -> None:
    authority = trustme.CA()
    ca, cert, own = (str(tmp_path / name) for name in ("ca.pem", "cert.pem", "own.pem"))
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(cert)
    authority.issue_cert("me@example.org").private_key_and_cert_chain_pem.write_to_path(own)
    control = {"tls_cert_file": cert, "tls_client_ca_file": ca}
    fleet = fleet_file(tmp_path, engines, control, tls_cert_file=cert)
    trusting = ssl.create_default_context(cafile=ca)
    with Command("serve", "--fleet", str(fleet), "--port", "0") as command:
        data, steering = urls_of(command)
        assert data.startswith("https://")
        assert steering.startswith("https://")
        asked = httpx.post(f"{data}/v1/completions", json=ASK, verify=trusting)
        assert asked.status_code == 200
        stream = ASK | {"stream": True}
        with httpx.stream("POST", f"{data}/v1/completions", json=stream, verify=trusting) as answer:
            assert answer.read().endswith(b"data: [DONE]\n\n")
        with pytest.raises(httpx.TransportError, match="certificate required"):
            httpx.get(f"{steering}/narwhal/state", verify=trusting)
        for words in (["top", "--once"], ["engines", "list"]):
            code, _, err = run(*words, "--url", steering, "--ca-file", ca)
            assert (code, "give one with --cert-file" in err) == (1, True), err
        reach = ("--url", steering, "--ca-file", ca)
        code, out, err = run("engines", "list", *reach, "--cert-file", own)
        assert (code, err, "serving" in out) == (0, "", True)
        code, out, err = run("top", "--once", *reach, "--cert-file", own)
        assert (code, err, "emulated" in out) == (0, "", True)
        assert told(*reach) == "it asks for a certificate; give one with --cert-file"
        assert re.fullmatch(
            r"its certificate is not trusted: .*; name the file \(PEM\) of who issued it with "
            "--ca-file",
            told("--url", steering, "--cert-file", own),
        )
        assert told("--url", steering.replace("https:", "http:")) == (
            "it closed the connection without an answer; if it speaks TLS, begin its --url with "
            "https:"
        )
        plain = engines[0].replace("http:", "https:")
        assert told("--url", plain) == "it does not speak TLS; begin its --url with http:"
        code, _, err = run("engines", "list", *reach, "--cert-file", str(tmp_path / "none.pem"))
        assert (code, "--cert-file" in err, "Traceback" in err) == (1, True, False)
        command.signal(signal.SIGTERM)
        assert command.end()[0] == 0
    Path(cert).unlink()
    code, _, err = run("serve", "--fleet", str(fleet), "--port", "0")
    line = f"narwhal-trio: control.tls_cert_file: {cert}: cannot be read: No such file or directory"
    assert (code, err) == (1, f"{line}\n")


# No secret gets out


def raw(url: str, data: bytes) -> bytes:
    """Whatever comes back for these bytes."""
    with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)) as sock:
        sock.settimeout(30)
        sock.sendall(data)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    return answer


BEARER = "authorization: Bearer {key}"
BROKEN = (
    f"GET /v1/models?api_key={{key}} HTTP/1.1\r\nhost: x\r\n{BEARER}\r\n bad\r\n\r\n",
    "GET /{key} HTTP/9.9\r\nhost: x\r\n\r\n",
    f"POST /v1/completions HTTP/1.1\r\n{BEARER}\r\ncookie: s={{key}}\r\n\r\n",
    f"GET / HTTP/1.1\r\nhost: x\r\n{BEARER}\nx: y\r\n\r\n",
    f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{BEARER}\r\n"  # noqa: ISC004
    "transfer-encoding: chunked\r\n\r\nzz{key}\r\n",
    "NOT {key}\r\n\r\n",
)


def drive(data: str, control: str) -> list[bytes]:
    """Every route, rightly and wrongly asked; all that was answered."""
    answers = []
    paths = (
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/models",
        "/health",
        "/ready",
        "/metrics",
        "/narwhal/state",
        "/narwhal/lifecycle",
        "/narwhal/lifecycle/drain",
        "/narwhal/lifecycle/readmit",
        "/no/such",
    )
    keys = (*CLIENT_KEYS, FILE_KEY, TOKEN, "mark-wrong-key-0123456789", "")
    bodies: tuple[Any, ...] = (
        ASK,
        ASK | {"stream": True, "user": "mark-user"},
        ASK | {"prompt": "mark-prompt fault=decode:tokens(1);rst"},
        ASK | {"n": 2, "user": "mark-user"},
        {"engine": "e9"},
        {"engine": "e1", "same_process": True},
        [],
    )
    with httpx.Client(cookies={"session": "mark-cookie"}, timeout=60) as client:
        for key in keys:
            headers = bearer(key) if key else {}
            headers |= {"x-api-key": "mark-header", "traceparent": "mark-trace"}
            for url in (data, control):
                for path in paths:
                    answers.append(
                        client.get(f"{url}{path}?key=mark-query", headers=headers).content
                    )
                    answers += [
                        client.post(url + path, json=body, headers=headers).content
                        for body in bodies
                    ]
    for url in (data, control):
        answers += [raw(url, each.format(key=CLIENT_KEYS[0]).encode()) for each in BROKEN]
    return answers


def test_no_secret_gets_out(environ: None, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(f"{FILE_KEY}\n")
    journal = tmp_path / "journal.jsonl"
    with emulated() as fleet_command:
        urls = [fleet_command.url(), fleet_command.url()]
        fleet = fleet_file(
            tmp_path,
            urls,
            {"token_env": "CONTROL_TOKEN"},
            api_key_env="CLIENT_KEYS",
            api_keys_file=str(keys),
        )
        argument = ("--fleet", str(fleet), "--port", "0", "--control-bind", "127.0.0.1:0")
        more = ("--log-level", "debug", "--journal", str(journal))
        log = tmp_path / "log"
        with Command("serve", *argument, *more, errors=log) as command:
            data, control = urls_of(command)
            asked = httpx.post(f"{data}/v1/completions", json=ASK, headers=bearer(FILE_KEY))
            assert asked.status_code == 200
            answers = drive(data, control)
            fleet_command.process.kill()
            fleet_command.process.wait()
            answers += drive(data, control)
            command.signal(signal.SIGTERM)
            code, out, _ = command.end()
    err = log.read_text()
    assert (code, "Traceback" in err) == (0, False)
    written = {
        "stdout": out,
        "stderr": err,
        "journal": journal.read_text(),
        "state file": (tmp_path / "state.json").read_text(),
        "answers": b"\n".join(answers).decode("utf-8", "replace"),
    }
    for form in ("text", "json"):
        written[f"config show {form}"] = run("config", "show", str(fleet), "--format", form)[1]
    written["config check"] = "".join(map(str, run("config", "check", str(fleet))))
    assert '"terminal":"completed"' in written["journal"].replace(" ", "")
    assert "engine_unreachable" in written["answers"]
    for name, text in written.items():
        found = re.findall(rf".{{0,60}}{MARK}.{{0,60}}", text)
        assert not found, f"{name}: {found[:3]}"


def test_a_password_in_an_address_is_not_repeated(
    environ: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENGINE_URL", "http://user:mark-password@127.0.0.1:1")
    for url in ("http://user:mark-password@127.0.0.1:1", "${ENGINE_URL}"):
        fleet = fleet_file(tmp_path, [url, "http://127.0.0.1:2"])
        for command in (("serve", "--fleet"), ("config", "check"), ("config", "show")):
            code, out, err = run(*command, str(fleet))
            assert code == 1
            assert "must not carry a user name or password" in err or "user name" in err
            assert MARK not in out + err
    code, out, err = run("engines", "list", "--url", "http://user:mark-password@127.0.0.1:1")
    assert (code, MARK in out + err) == (1, False)
