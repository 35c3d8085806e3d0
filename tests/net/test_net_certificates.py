"""Certificates of listeners: new ones while connections are open, and until when they hold."""

from __future__ import annotations

import base64
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from net_world import GET, echo

from narwhal.model import ConfigError
from narwhal.net import MemoryNetwork, Server, ServerTls, TlsListener, TlsStream
from narwhal.net.certificates import expiry

trustme = pytest.importorskip("trustme")
x509 = pytest.importorskip("cryptography.x509")
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")
ec = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ec")
hashes = pytest.importorskip("cryptography.hazmat.primitives.hashes")

OLD = datetime(2031, 1, 2, 3, 4, 5, tzinfo=UTC)
NEW = datetime(2051, 6, 7, 8, 9, 10, tzinfo=UTC)


def issue(path: Path, until: datetime) -> ssl.SSLContext:
    """Write a certificate with its key, of an authority of its own; whoever trusts that."""
    authority = trustme.CA()
    made = authority.issue_cert("router", not_after=until)
    made.private_key_and_cert_chain_pem.write_to_path(path)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def ask(stream: TlsStream) -> bool:
    """Whether it is answered; false if the handshake is not to the client's liking."""
    try:
        await stream.send_all(GET)
        return (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
    except trio.BrokenResourceError:
        return False


def test_new_connections_have_the_new_certificate_and_open_ones_go_on(tmp_path: Path) -> None:
    path = tmp_path / "both.pem"

    async def main() -> None:
        first = issue(path, OLD)
        tls = ServerTls("serving", cert=str(path))
        assert tls.expires_at == OLD.timestamp()
        network = MemoryNetwork()

        async def connect(trusting: ssl.SSLContext) -> TlsStream:
            inner = await network.connect("router", 443)
            return TlsStream(inner, trusting, server_hostname="router")

        async with trio.open_nursery() as nursery:
            server = Server(echo)
            await nursery.start(server.serve, [TlsListener(network.listen("router", 443), tls)])
            open_one = await connect(first)
            assert await ask(open_one)
            second = issue(path, NEW)
            late = await connect(second)
            assert not await ask(late), "nobody has said yet that there is a new one"
            await tls.reload()
            assert tls.expires_at == NEW.timestamp()
            assert await ask(open_one)
            new, old = await connect(second), await connect(first)
            assert await ask(new)
            assert not await ask(old)
            for stream in (open_one, late, new, old):
                stream.close()
            assert await server.drain(1)

    trio.run(main)


def test_who_comes_back_does_not_resume_what_there_was(tmp_path: Path) -> None:
    """A ticket of before would spare the client the sight of the new certificate."""
    path = tmp_path / "both.pem"
    trusting = issue(path, OLD)
    trusting.maximum_version = ssl.TLSVersion.TLSv1_2  # the session is there with the handshake
    tls = ServerTls("serving", cert=str(path))

    def shake(session: ssl.SSLSession | None) -> ssl.SSLObject:
        up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
        there = tls.context.wrap_bio(up, down, server_side=True)
        here = trusting.wrap_bio(down, up, server_hostname="router", session=session)
        for _ in range(3):
            for side in (here, there):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
        return here

    session = shake(None).session
    assert shake(session).session_reused
    trio.run(tls.reload)
    assert not shake(session).session_reused


@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\n"])
def test_what_cannot_be_used_changes_nothing(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "both.pem"
    issue(path, OLD)
    tls = ServerTls("control", cert=str(path), client_ca=str(path))
    before = tls.context
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        trio.run(tls.reload)
    assert refused.value.problems[0].startswith(f"{tls.source}: ")
    assert tls.source == f"control.tls_cert_file: {path}"
    assert (tls.context, tls.expires_at) == (before, OLD.timestamp())


@pytest.mark.parametrize("call", ["load_cert_chain", "load_verify_locations"])
def test_a_file_that_goes_while_it_is_read_is_one_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Whatever renews certificates may be at it: that must not end a router."""
    path = tmp_path / "both.pem"
    issue(path, OLD)
    tls = ServerTls("control", cert=str(path), client_ca=str(path))

    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(ssl.SSLContext, call, gone)
    with pytest.raises(ConfigError, match=r"both\.pem: cannot be read: No such file"):
        trio.run(tls.reload)


def test_an_authority_that_is_gone_leaves_the_certificate_as_well(tmp_path: Path) -> None:
    """Half of what is new would be neither the one nor the other."""
    path, ca = tmp_path / "both.pem", tmp_path / "ca.pem"
    issue(path, OLD)
    ca.write_bytes(path.read_bytes())
    tls = ServerTls("control", cert=str(path), client_ca=str(ca))
    issue(path, NEW)
    ca.unlink()
    with pytest.raises(ConfigError, match=r"control\.tls_client_ca_file: .*cannot be read"):
        trio.run(tls.reload)
    assert tls.expires_at == OLD.timestamp()
    ca.write_bytes(path.read_bytes())
    trio.run(tls.reload)
    assert tls.expires_at == NEW.timestamp()


# Until when it holds

_KEY = ec.generate_private_key(ec.SECP256R1())
_BEGIN = datetime(1950, 1, 1)


def pem_of(until: datetime, *, name: str, serial: int) -> bytes:
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)] * 3)
    made = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(_KEY.public_key())
        .serial_number(serial)
        .not_valid_before(_BEGIN)
        .not_valid_after(until)
        .sign(_KEY, hashes.SHA256())
    )
    return bytes(made.public_bytes(serialization.Encoding.PEM))


@given(
    until=st.datetimes(min_value=_BEGIN, max_value=datetime(9999, 12, 31)),
    name=st.text("abc", min_size=1, max_size=64),
    serial=st.integers(min_value=1, max_value=2**159 - 1),
    others=st.lists(st.just(pem_of(OLD, name="issuer", serial=1)), max_size=2),
)
def test_the_expiry_is_the_first_certificate_s(
    until: datetime, name: str, serial: int, others: list[bytes]
) -> None:
    key = b"-----BEGIN EC PRIVATE KEY-----\nAAAA\n-----END EC PRIVATE KEY-----\n"
    until = until.replace(microsecond=0)
    pem = key + b"".join([pem_of(until, name=name, serial=serial), *others])
    assert expiry(pem) == until.replace(tzinfo=UTC).timestamp()


@given(st.binary(max_size=80))
def test_any_bytes_have_an_expiry_or_are_the_expected_error(der: bytes) -> None:
    text = base64.encodebytes(der)
    pem = b"-----BEGIN CERTIFICATE-----\n" + text + b"-----END CERTIFICATE-----\n"
    for content in (der, pem):
        with pytest.raises(ValueError, match="does not say until when it holds"):
            expiry(content)
