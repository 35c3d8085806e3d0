"""Keys of clients, the token of operators, and where control routes may be reached from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from narwhal.app import Access, App, open_router
from narwhal.app.keys import LOOK_EVERY_S, KeyFile, KeyRing
from narwhal.model import ConfigError
from narwhal.net import MemoryNetwork
from narwhal.telemetry import Denial

from worlds import ENVIRON, World, fleet_config, play

ASK = {"model": "m", "prompt": "hello", "max_tokens": 4}
KEY_1, KEY_2 = ENVIRON["CLIENT_KEYS"].split(",")
TOKEN = ENVIRON["CONTROL_TOKEN"]
KEYED = fleet_config(api_key_env="CLIENT_KEYS")
DRAIN = "/narwhal/lifecycle/drain"


def bearer(key: str, scheme: str = "Bearer") -> dict[str, str]:
    return {"authorization": f"{scheme} {key}"}


def denied(world: World) -> dict[tuple[str, str], float]:
    cells = world.router.telemetry.metrics.denied
    return {key: cell.value for key, cell in cells.items() if cell.value}


# Keys of clients


@pytest.mark.parametrize(
    ("headers", "denial"),
    [
        (bearer(KEY_1), None),
        (bearer(KEY_2), None),
        (bearer(KEY_2, "bEARER"), None),
        (bearer(f" {KEY_2}"), None),
        ({}, Denial.NO_KEY),
        ({"authorization": "Bearer"}, Denial.NO_KEY),
        (bearer(KEY_1[:-1]), Denial.WRONG_KEY),
        (bearer(f"{KEY_1},{KEY_2}"), Denial.WRONG_KEY),
        (bearer(KEY_1, "Basic"), Denial.NO_KEY),
        ({"authorization": KEY_1}, Denial.NO_KEY),
        ({"x-api-key": KEY_1}, Denial.NO_KEY),
    ],
)
@pytest.mark.parametrize(
    ("path", "method"),
    [
        ("/v1/completions", "POST"),
        ("/v1/models", "GET"),
        ("/v1/models/m", "GET"),
        ("/no/such", "GET"),
    ],
)
def test_one_of_the_keys_is_asked_for(
    headers: dict[str, str], denial: Denial | None, path: str, method: str
) -> None:
    async def body(world: World) -> None:
        content = ASK if method == "POST" else None
        answer = await world.post(content, path, method=method, headers=headers)
        if denial is None:
            assert answer.status == (404 if path == "/no/such" else 200)
            assert not denied(world)
            return
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        error = answer.error
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        assert error["param"] is None
        assert "secret" not in answer.body.decode()
        assert denied(world) == {("data", denial): 1}
        assert world.router.telemetry.totals().received == 0

    play(body, KEYED)


def test_two_authorizations_are_none() -> None:
    ring = KeyRing(["a" * 16])
    value = b"Bearer " + b"a" * 16
    assert ring.denial([(b"authorization", value)]) is None
    assert ring.denial([(b"authorization", value)] * 2) is Denial.NO_KEY


def test_every_key_is_compared_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr("narwhal.app.keys.compare_digest", compare)
    ring = KeyRing(["first", "second"], ["third"])
    for key in (b"first", b"third", b"none", b"f" * 5000):
        ring.denial([(b"authorization", b"Bearer " + key)])
    assert compared == [(32, 32)] * 12


@given(st.lists(st.from_regex(r"[!-~]{1,40}", fullmatch=True), min_size=1), st.data())
def test_a_ring_has_the_keys_that_it_was_given(keys: list[str], data: st.DataObject) -> None:
    ring = KeyRing(keys)
    other = data.draw(st.from_regex(r"[!-~]{1,40}", fullmatch=True))
    for key in (*keys, other):
        found = ring.denial([(b"authorization", f"Bearer {key}".encode())])
        assert (found is None) == (key in keys)
    assert not any(key in repr(vars(ring)) for key in keys if len(key) > 8)


def test_what_probes_and_scrapers_ask_for_needs_no_key() -> None:
    async def body(world: World) -> None:
        for path in ("/health", "/ready", "/metrics"):
            assert (await world.get(path)).status == 200

    play(body, KEYED)


def test_metrics_can_be_made_to_need_one() -> None:
    async def body(world: World) -> None:
        assert (await world.get("/metrics")).status == 401
        assert (await world.get("/health")).status == 200
        answer = await world.post(None, "/metrics", method="GET", headers=bearer(KEY_1))
        assert answer.status == 200

    play(body, fleet_config(api_key_env="CLIENT_KEYS", metrics_need_key=True))


def test_a_key_is_asked_for_before_the_body_and_before_a_place() -> None:
    async def body(world: World) -> None:
        full = world.router.core.retained_limit
        world.router.core.retained = full  # who is let in is told so: 429
        client = await world.connect()
        await client.stream.send_all(
            b"POST /v1/completions HTTP/1.1\r\nhost: router\r\ncontent-length: 1000\r\n\r\n{"
        )
        assert (await client.head()).status_code == 401
        world.router.core.retained = 0
        client.close()
        assert world.stubs.seen == []

    play(body, KEYED)


def test_a_key_of_a_client_does_not_reach_an_engine() -> None:
    async def body(world: World) -> None:
        assert (await world.post(ASK, headers=bearer(KEY_1))).status == 200
        seen = [each.headers.get("authorization") for each in world.stubs.seen]
        assert set(seen) == {"Bearer engine-secret"}
        assert KEY_1 not in str([each.headers for each in world.stubs.seen])

    config = fleet_config(api_key_env="CLIENT_KEYS", engine={"engine_api_key_env": "ENGINE_KEY"})
    play(body, config)


# Keys in a file


def test_keys_in_a_file_come_and_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text("# of alice\nalice-secret-0123456789\n")

    async def body(world: World) -> None:
        async def status(key: str) -> int:
            return (await world.post(ASK, headers=bearer(key))).status

        async def until(key: str, wanted: int) -> None:
            while await status(key) != wanted:  # noqa: ASYNC110 - it is asked, not told
                await trio.sleep(LOOK_EVERY_S / 2)

        async def logged(text: str) -> None:
            while text not in caplog.text:  # noqa: ASYNC110 - likewise
                await trio.sleep(LOOK_EVERY_S)

        assert [await status(key) for key in ("alice-secret-0123456789", KEY_1)] == [200, 200]
        file.write_text("bob-secret\n")
        await until("bob-secret", 200)
        assert [await status(key) for key in ("alice-secret-0123456789", KEY_1)] == [401, 200]
        file.write_text("not a key\n")
        await logged("the keys of before stay")
        assert await status("bob-secret") == 200
        file.unlink()
        await logged("No such file")
        assert await status("bob-secret") == 200
        file.write_text("carol-secret-0123456789\n")
        await until("carol-secret-0123456789", 200)
        assert await status("bob-secret") == 401

    caplog.set_level("INFO", logger="narwhal.app")
    play(body, fleet_config(api_keys_file=str(file), api_key_env="CLIENT_KEYS"))
    assert "1 of its keys have fewer than 16 characters" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "holds no key"),
        (b"# notes\n", "holds no key"),
        (b"a b\n", "holds a key with blanks"),
        (b"\xff\n", "holds characters that"),
    ],
)
def test_a_file_without_keys_is_refused_at_the_start(
    content: bytes | None, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)

    async def main() -> None:
        with pytest.raises(ConfigError) as refused:
            async with open_router(fleet_config(api_keys_file=str(file)), environ={}):
                pass
        (line,) = refused.value.problems
        assert line.startswith(f"serving.api_keys_file: {file}: {reason}")

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_a_file_is_given_out_once(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one")
    keys = KeyFile(str(file))
    assert (keys.read(), keys.read()) == (("one",), None)
    file.write_text("")
    with pytest.raises(ConfigError):
        keys.read()
    assert keys.read() is None
    file.write_text("one")
    assert keys.read() == ("one",)


# Control routes


def test_the_token_is_asked_for_and_no_key_will_do() -> None:
    async def body(world: World) -> None:
        for path, method in (("/narwhal/state", "GET"), (DRAIN, "POST"), ("/narwhal/new", "GET")):
            for headers in ({}, bearer(KEY_1), bearer("x")):
                answer = await world.post({}, path, method=method, headers=headers)
                assert (answer.status, answer.error["code"]) == (401, "invalid_token")
                assert answer.headers["www-authenticate"] == "Bearer"
        assert denied(world) == {("data", Denial.NO_KEY): 3, ("data", Denial.WRONG_KEY): 6}
        # With the token, neither a page nor a proxy matters: neither could know it.
        more = {"origin": "https://ops", "x-forwarded-for": "10.0.0.9", "host": "ops.example"}
        answer = await world.post({"engine": "d0"}, DRAIN, headers=bearer(TOKEN) | more)
        assert answer.status == 200
        # It is no key of a client's.
        assert (await world.post(ASK, headers=bearer(TOKEN))).status == 401

    play(body, fleet_config(api_key_env="CLIENT_KEYS", control={"token_env": "CONTROL_TOKEN"}))


SUSPICIOUS: list[tuple[dict[str, str], Denial | None]] = [
    ({}, None),
    ({"host": "localhost"}, None),
    ({"host": "LOCALHOST:8000"}, None),
    ({"host": "localhost."}, None),
    ({"host": "127.0.0.1:8000"}, None),
    ({"host": "[::1]:8000"}, None),
    ({"host": "10.0.0.7"}, None),
    ({"host": "router:8000"}, None),  # what the listener is bound to
    ({"sec-fetch-site": "none"}, None),
    ({"host": "evil.example"}, Denial.HOST),
    ({"host": "evil.example:8000"}, Denial.HOST),
    ({"host": "localhost.evil.example"}, Denial.HOST),
    ({"host": "127.0.0.1.evil.example"}, Denial.HOST),
    ({"host": "localhost@evil.example"}, Denial.HOST),
    ({"host": ""}, Denial.HOST),
    ({"origin": "https://evil.example"}, Denial.BROWSER),
    ({"origin": "null"}, Denial.BROWSER),
    ({"origin": "http://127.0.0.1:8000"}, Denial.BROWSER),
    ({"sec-fetch-site": "cross-site"}, Denial.BROWSER),
    ({"sec-fetch-site": "same-site"}, Denial.BROWSER),
    ({"x-forwarded-for": "1.2.3.4"}, Denial.PROXIED),
    ({"forwarded": "for=1.2.3.4"}, Denial.PROXIED),
    ({"via": "1.1 proxy"}, Denial.PROXIED),
]


@pytest.mark.parametrize(("headers", "denial"), SUSPICIOUS)
@pytest.mark.parametrize(("path", "method"), [(DRAIN, "POST"), ("/narwhal/state", "GET")])
def test_without_a_token_no_page_and_no_proxy_gets_to_control_routes(
    headers: dict[str, str], denial: Denial | None, path: str, method: str
) -> None:
    async def body(world: World) -> None:
        answer = await world.post({"engine": "d0"}, path, method=method, headers=headers)
        if denial is None:
            assert answer.status == 200
            return
        assert (answer.status, answer.error["code"]) == (403, "control_denied")
        assert denied(world) == {("data", denial): 1}
        assert world.router.live_state().engines[1].state == "serving"

    play(body)


def test_escapes_do_not_get_past_a_filter_to_a_control_route() -> None:
    async def body(world: World) -> None:
        for path in ("/narwhal%2Fstate", "/n%61rwhal/state", "/narwhal/%73tate"):
            answer = await world.get(path)
            assert (answer.status, answer.error["code"]) == (403, "control_denied")

    play(body)


def scope_of(path: str, server: Any, method: str = "GET", host: bytes = b"127.0.0.1") -> Any:
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "headers": [(b"host", host)],
        "server": server,
    }


async def status_of(app: App, scope: Any) -> int:
    sent = []

    parts = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Any:
        if not parts:
            await trio.sleep_forever()
        return parts.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return int(sent[0]["status"])


def with_apps(body: Callable[[Any], Awaitable[None]], **more: Any) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        config = fleet_config(**more)
        async with open_router(config, environ=ENVIRON, connect=network.connect) as router:
            await body(router)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("server", "status"),
    [
        (("127.0.0.1", 80), 200),
        (("::1", 80), 200),
        (("::ffff:127.0.0.1", 80), 200),
        (("/run/router.sock", None), 200),
        (None, 200),
        (("10.0.0.7", 80), 403),
        (("0.0.0.0", 80), 403),
        (("fe80::1%eth0", 80), 403),
    ],
)
@pytest.mark.parametrize("token", [False, True])
def test_beside_data_routes_control_routes_are_for_this_machine(
    server: Any, status: int, token: bool
) -> None:
    """In any ASGI server, and whether or not there is a token."""

    async def body(router: Any) -> None:
        scope = scope_of("/narwhal/state", server)
        if token:
            scope["headers"].append((b"authorization", f"Bearer {TOKEN}".encode()))
        assert await status_of(router.app, scope) == status
        assert await status_of(router.app, scope_of("/v1/models", server)) == 200

    with_apps(body, control={"token_env": "CONTROL_TOKEN"} if token else {})


def test_the_two_halves_of_the_application() -> None:
    async def body(router: Any) -> None:
        out_there = ("10.0.0.7", 80)
        both = ["/health", "/ready", "/metrics"]
        data, control = ["/v1/models", "/v1/models/m"], ["/narwhal/state", "/narwhal/lifecycle"]
        for app, here, elsewhere in (
            (router.data_app, both + data, control),
            (router.control_app, both + control, data),
        ):
            assert [await status_of(app, scope_of(path, out_there)) for path in here] == [
                200
            ] * len(here)
            assert [await status_of(app, scope_of(path, out_there)) for path in elsewhere] == [
                404
            ] * len(elsewhere)
        for path in ("/v1/completions", "/v1/chat/completions"):
            assert await status_of(router.control_app, scope_of(path, out_there, "POST")) == 404

    with_apps(body)


def test_the_name_that_the_control_listener_is_bound_to_is_one_of_its_own() -> None:
    async def body(router: Any) -> None:
        for host, status in ((b"Ops.example:9", 200), (b"other.example", 403)):
            scope = scope_of("/narwhal/state", ("10.0.0.7", 9), host=host)
            assert await status_of(router.control_app, scope) == status

    with_apps(body, control={"bind": "ops.example:9"})


def test_short_keys_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    config = fleet_config(api_key_env="CLIENT_KEYS", control={"token_env": "CONTROL_TOKEN"})
    Access.of(config, ENVIRON)
    assert not caplog.records
    Access.of(config, {"CLIENT_KEYS": "short,shorter," + "x" * 16, "CONTROL_TOKEN": "brief"})
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("serving.api_key_env: 2 of its keys have fewer than 16 characters")
    assert second.startswith("control.token_env: 1 of its keys")
    assert "brief" not in caplog.text
