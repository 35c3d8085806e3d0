"""What the page on security states, against where it comes from."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs
import pytest
import trio
from docs_pages import DOCS, code_blocks, table
from trio.testing import MockClock

from narwhal.app import access, keys, open_router, servers
from narwhal.cli.doors import Doors
from narwhal.config import FleetConfig, parse_fleet
from narwhal.config.keys import SHORT_KEY_CHARS
from narwhal.config.listeners import Http
from narwhal.config.settings import walk
from narwhal.model import ClientLimit
from narwhal.net import ServerOptions

from worlds import ENVIRON, fleet_config

PAGE = (DOCS / "security.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())


def test_the_numbers() -> None:
    http = Http()
    assert f"looked at every {keys.LOOK_EVERY_S:g} seconds" in WORDS
    assert f"fewer than {SHORT_KEY_CHARS} characters" in WORDS
    assert f"(at most {servers.MOST_CONTROL_CONNECTIONS})" in WORDS
    rate = (
        f"{http.body_grace_s:g} s, and another second for each {http.min_body_bytes_per_s:g} bytes"
    )
    assert rate in WORDS
    assert f"| requests sent ahead | {ServerOptions().max_pipelined_bytes // 1024} KiB |" in PAGE


def test_the_settings_exist() -> None:
    known = {path for path, _ in walk(FleetConfig)}
    named = re.findall(r"`((?:serving|http|control|engine)\.\w+)`", PAGE)
    assert set(named) <= known
    for path in known:
        if path.startswith(("http.", "control.")) or path in {
            "serving.api_key_env",
            "serving.api_keys_file",
            "serving.metrics_need_key",
            "serving.tls_cert_file",
            "serving.max_client_connections",
        }:
            assert path.rpartition(".")[2] in PAGE, path


def test_the_headers_that_give_a_request_away() -> None:
    for name in access._PASSED_ON:
        assert f"`{name.decode()}`" in PAGE
    for site in access._OWN_SITES:
        assert f"`{site.decode()}`" in PAGE


def test_the_limits_of_one_client_are_all_in_the_table() -> None:
    rows = table(PAGE, "## What one client can take")
    # A row may have several; what the kernel holds back and what is sent ahead are in it too.
    assert len(rows) == 9
    assert len(ClientLimit) == 7
    settings = {name for row in rows for name in re.findall(r"`http\.(\w+)`", row[1])}
    assert settings == {field.name for field in attrs.fields(Http)}


def test_the_fleet_file_on_the_page_is_one() -> None:
    (text,) = (block for block in code_blocks(PAGE) if block.startswith("{"))
    shown = json.loads(text)
    config = fleet_config()
    document = {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": "m",
        "engines": [{"iid": each.iid, "url": each.url} for each in config.engines],
        "slo": {"ttft_s": 1, "tpot_s": 1},
    } | shown
    assert parse_fleet(document, name="x", environ=ENVIRON).control.token_env == "CONTROL_TOKEN"


@pytest.mark.parametrize(
    ("control", "host", "own"),
    [
        ({"bind": "127.0.0.1:9000"}, "127.0.0.1", True),
        ({}, "127.0.0.1", False),
        ({}, "0.0.0.0", False),  # decided by what is bound: tests/cli has it
    ],
)
def test_where_control_routes_are(control: dict[str, str], host: str, own: bool) -> None:
    doors = Doors.of(fleet_config(control=control), host, 8000)
    assert (doors.control is not None) is own
    assert (doors.spare.host, doors.spare.port) == ("127.0.0.1", 0)


def test_an_embedded_router_asks_for_what_the_page_says() -> None:
    config = fleet_config(api_key_env="CLIENT_KEYS", control={"token_env": "CONTROL_TOKEN"})

    async def main() -> None:
        statuses = []

        async def send(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        async with open_router(config, environ=ENVIRON) as router:
            for path in ("/v1/models", "/narwhal/state"):
                scope: Any = {"type": "http", "method": "GET", "path": path, "headers": []}
                await router.app(scope, None, send)
        assert statuses == [401, 401]

    trio.run(main, clock=MockClock(autojump_threshold=0))
