"""Where `serve` listens, and for whom: with listeners in memory, as no test may bind the world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import click
import pytest
import trio
from trio.testing import MockClock

from narwhal.app import open_router
from narwhal.cli import doors
from narwhal.cli.doors import Doors, Opened, open_doors
from narwhal.config import FleetConfig
from narwhal.net import Listener, MemoryNetwork

from worlds import ENVIRON, fleet_config

EVERYWHERE = {"0.0.0.0": "0.0.0.0", "localhost": "127.0.0.1"}


@attrs.define
class Machine:
    """What may be listened on; `taken` addresses may not."""

    network: MemoryNetwork = attrs.field(factory=MemoryNetwork)
    taken: tuple[str, int] | None = None

    async def listen(self, host: str, port: int, *, advice: str) -> Sequence[Listener]:
        if (host, port) == self.taken:
            raise click.ClickException(f"choose another {advice}")
        return [self.network.listen(EVERYWHERE.get(host, host), port)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(doors, "listen", made.listen)
    return made


def opened(config: FleetConfig, host: str) -> Opened:
    return trio.run(open_doors, Doors.of(config, host, 8000))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_on_loopback_control_routes_are_on_the_data_listener(machine: Machine, host: str) -> None:
    found = opened(fleet_config(), host)
    assert not found.control
    data, control = found.urls
    assert data == control == f"http://{'[::1]' if host == '::1' else '127.0.0.1'}:8000"


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.7", "::"])
def test_elsewhere_they_are_on_a_free_port_of_loopback(
    machine: Machine, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = opened(fleet_config(), host)
    assert [listener.address for listener in found.control] == [("127.0.0.1", 20000)]
    assert found.urls[1] == "http://127.0.0.1:20000"
    assert not caplog.records


def test_they_are_where_they_are_told_to_be(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    config = fleet_config(control={"bind": "10.0.0.7:9000"})
    found = opened(config, "127.0.0.1")
    assert found.urls == ("http://127.0.0.1:8000", "http://10.0.0.7:9000")
    (record,) = caplog.records
    assert "http://10.0.0.7:9000 for everybody who reaches it" in record.getMessage()


def test_a_token_makes_that_no_matter(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    opened(fleet_config(control={"bind": "10.0.0.7:9000", "token_env": "CONTROL_TOKEN"}), "::1")
    assert not caplog.records


def test_either_all_addresses_are_bound_or_none(machine: Machine) -> None:
    machine.taken = ("10.0.0.7", 9000)
    with pytest.raises(click.ClickException, match=r"--control-bind \(control.bind\)"):
        opened(fleet_config(control={"bind": "10.0.0.7:9000"}), "127.0.0.1")
    machine.network.listen("127.0.0.1", 8000)  # which is free again


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_servers_have_the_limits_of_the_file(machine: Machine, host: str) -> None:
    http = {
        "header_timeout_s": 3.0,
        "keep_alive_timeout_s": 4.0,
        "max_header_bytes": 5000,
        "max_headers": 60,
        "max_uri_bytes": 700,
        "body_grace_s": 8.0,
        "min_body_bytes_per_s": 9.0,
    }
    config = fleet_config(http=http, max_client_connections=77)

    async def main() -> None:
        found = await open_doors(Doors.of(config, host, 8000))
        async with open_router(config, environ=ENVIRON) as router:
            servers = found.servers(router)
            apps: list[Any] = [server.app for server, _ in servers]
            split = [router.data_app, router.control_app]
            assert apps == ([router.app] if host == "127.0.0.1" else split)
            for (server, listeners), most in zip(servers, (77, 128), strict=False):
                options = server.options
                assert [
                    options.header_timeout,
                    options.keep_alive_timeout,
                    options.max_header_bytes,
                    options.max_headers,
                    options.max_uri_bytes,
                    options.body_grace,
                    options.min_body_rate,
                ] == list(http.values())
                assert options.max_connections == most
                for listener in listeners:
                    listener.close()

    trio.run(main, clock=MockClock(autojump_threshold=0))
