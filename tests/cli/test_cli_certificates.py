"""Certificates of `serve`: SIGHUP loads them anew, metrics and log say until when they hold."""

from __future__ import annotations

import re
import signal
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import trio
from trio.testing import MockClock

from narwhal.cli.certificates import RELOAD_BOUND_S, Certificates
from narwhal.net import ServerTls
from narwhal.telemetry import Door

from processes import Command, write_fleet
from worlds import World, fleet_config, play

trustme = pytest.importorskip("trustme")

UNTIL = [datetime(2040 + n, 1, 1, tzinfo=UTC) for n in range(3)]
METRIC = "narwhal_certificate_expiry_timestamp_seconds"


class Authority:
    """Issues certificates of this machine."""

    def __init__(self) -> None:
        self._ca = trustme.CA()
        self.trusting = ssl.create_default_context()
        self._ca.configure_trust(self.trusting)

    def issue(self, path: Path, until: datetime) -> None:
        made = self._ca.issue_cert("127.0.0.1", not_after=until)
        made.private_key_and_cert_chain_pem.write_to_path(path)

    def shown(self, url: str) -> str:
        """Until when the certificate holds that a new connection to `url` is shown."""
        at = urlsplit(url)
        host, port = at.hostname or "", at.port or 0

        async def look() -> str:
            stream = await trio.open_ssl_over_tcp_stream(host, port, ssl_context=self.trusting)
            async with stream:
                await stream.do_handshake()
                return str(stream.getpeercert()["notAfter"])

        return trio.run(look)


def as_shown(until: datetime) -> str:
    return until.strftime("%b %e %H:%M:%S %Y GMT")


@pytest.mark.sockets
def test_a_signal_puts_new_certificates_on_both_listeners(tmp_path: Path) -> None:
    authority = Authority()
    data, control = tmp_path / "data.pem", tmp_path / "control.pem"
    for path in (data, control):
        authority.issue(path, UNTIL[0])
    fleet = write_fleet(
        tmp_path / "fleet.json",
        ["http://127.0.0.1:9", "http://127.0.0.1:10"],
        tls_cert_file=str(data),
    )
    fleet.write_text(fleet.read_text()[:-1] + f', "control": {{"tls_cert_file": "{control}"}}}}')
    with Command("serve", "--fleet", str(fleet), "--port", "0") as command:
        urls = [
            command.line(rf"{what} on (https://\S+)")[1]
            for what in (r"serving \S+", "control routes are")
        ]
        assert [authority.shown(url) for url in urls] == [as_shown(UNTIL[0])] * 2
        with httpx.Client(verify=authority.trusting, base_url=urls[0]) as client:
            assert client.get("/health").status_code == 200
            authority.issue(data, UNTIL[1])
            authority.issue(control, UNTIL[2])
            command.signal(signal.SIGHUP)
            said = [command.error(r"loaded anew; valid until (\S+)")[1] for _ in urls]
            assert said == [f"{until:%Y-%m-%dT%H:%M:%S}+00:00" for until in UNTIL[1:]]
            assert [authority.shown(url) for url in urls] == [as_shown(each) for each in UNTIL[1:]]
            authority.issue(data, UNTIL[2])
            control.write_text("")
            command.signal(signal.SIGHUP)
            command.error(rf"{data}: loaded anew")
            line = command.error(r"ERROR narwhal\.cli: (.*)")[1]
            assert line.startswith(f"control.tls_cert_file: {control}: not certificate and key in")
            assert line.endswith("stays in use: mend that, and send SIGHUP again")
            assert [authority.shown(url) for url in urls] == [as_shown(UNTIL[2])] * 2
            page = client.get("/metrics").text  # on the connection of before
            values = dict(re.findall(rf'^{METRIC}{{listener="(\w+)"}} (.+)$', page, re.MULTILINE))
            assert {door: float(values[door]) for door in Door} == dict.fromkeys(
                Door, UNTIL[2].timestamp()
            )
        command.signal(signal.SIGTERM)
        assert command.end()[0] == 0


def tls_until(tmp_path: Path, until: datetime) -> ServerTls:
    Authority().issue(tmp_path / "cert.pem", until)
    return ServerTls("serving", cert=str(tmp_path / "cert.pem"))


def test_a_certificate_that_has_expired_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls = tls_until(tmp_path, UNTIL[0])

    async def body(world: World) -> None:
        telemetry = world.router.telemetry
        expiry = telemetry.metrics.certificate_expiry
        assert not Certificates({}, telemetry)
        assert {cell.value for cell in expiry.values()} == {0}
        before, then = UNTIL[0].timestamp() - 1, UNTIL[0].timestamp()
        assert Certificates({Door.CONTROL: tls}, telemetry, wall_clock=lambda: before)
        assert not caplog.records
        assert Certificates({Door.CONTROL: tls}, telemetry, wall_clock=lambda: then)
        assert (expiry[Door.DATA].value, expiry[Door.CONTROL].value) == (0, then)

    play(body, fleet_config())
    (record,) = caplog.records
    assert f"{tls.source}: expired on 2040-01-01T00:00:00+00:00" in record.getMessage()


def test_a_disk_that_hangs_is_given_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tls = tls_until(tmp_path, UNTIL[0])

    class Deaf:
        def certificate_loaded(self, *_: Any) -> None: ...

    monkeypatch.setattr(tls, "reload", trio.sleep_forever)

    async def main() -> None:
        certificates = Certificates({Door.DATA: tls}, Deaf())  # type: ignore[arg-type]
        await certificates.reload()
        assert trio.current_time() == RELOAD_BOUND_S

    trio.run(main, clock=MockClock(autojump_threshold=0))
    (record,) = caplog.records
    assert "was not read within 10 s; the certificate of before stays in use" in record.getMessage()
