"""Listeners that speak TLS: what files make of them, and whom they let in."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trio
from net_world import GET, echo
from trio.testing import MockClock

from narwhal.model import ClientLimit, ConfigError
from narwhal.net import MemoryNetwork, Server, ServerTls, TlsListener, TlsStream

trustme = pytest.importorskip("trustme")
serialization = pytest.importorskip("cryptography.hazmat.primitives.serialization")


class Files:
    """An authority, a server's certificate and key, and a client's."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca)
        server = self.authority.issue_cert("router")
        self.cert, self.key = str(folder / "cert.pem"), str(folder / "key.pem")
        self.both = str(folder / "both.pem")
        server.private_key_pem.write_to_path(self.key)
        for blob in server.cert_chain_pems:
            blob.write_to_path(self.cert)
        server.private_key_and_cert_chain_pem.write_to_path(self.both)
        self.client = self.authority.issue_cert("operator@example.org")

    def client_context(self, *, certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        if certificate:
            self.client.configure_cert(context)
        return context


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


def locked(key: bytes) -> bytes:
    """The same key, encrypted."""
    loaded = serialization.load_pem_private_key(key, password=None)
    return bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hush"),
        )
    )


async def ask(network: MemoryNetwork, client: ssl.SSLContext) -> bytes:
    """What a client gets that speaks TLS with `client`."""
    stream = TlsStream(await network.connect("router", 443), client, server_hostname="router")
    try:
        await stream.send_all(GET)
        return await stream.receive_some()
    finally:
        stream.close()


async def refused(network: MemoryNetwork, client: ssl.SSLContext) -> bool:
    """Whether such a client gets nothing; in TLS 1.3 it may learn so only after its request."""
    try:
        return await ask(network, client) == b""
    except trio.BrokenResourceError:
        return True


def serve(tls: ServerTls, body: Any) -> None:
    async def main() -> None:
        network = MemoryNetwork()
        told: list[ClientLimit] = []
        async with trio.open_nursery() as nursery:
            server = Server(echo, told=told.append)
            listener = TlsListener(network.listen("router", 443), tls)
            assert listener.address == ("router", 443)
            await nursery.start(server.serve, [listener])
            await body(network, told)
            assert await server.drain(1)
        assert network.open_streams == 0

    trio.run(main, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("together", [False, True])
def test_certificate_and_key_are_in_two_files_or_in_one(files: Files, together: bool) -> None:
    async def body(network: MemoryNetwork, told: Any) -> None:
        for _ in range(3):
            assert (await ask(network, files.client_context())).startswith(b"HTTP/1.1 200 ")

    cert, key = (files.both, None) if together else (files.cert, files.key)
    serve(ServerTls("serving", cert=cert, key=key), body)


def test_old_versions_are_not_spoken(files: Files) -> None:
    async def body(network: MemoryNetwork, told: Any) -> None:
        new = files.client_context()
        new.maximum_version = ssl.TLSVersion.TLSv1_2
        assert (await ask(network, new)).startswith(b"HTTP/1.1 200 ")
        old = files.client_context()
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            old.minimum_version = ssl.TLSVersion.TLSv1
        with pytest.warns(DeprecationWarning, match="TLSv1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        assert await refused(network, old)

    serve(ServerTls("serving", cert=files.both), body)


def test_a_client_without_the_certificate_that_is_asked_for_gets_nothing(files: Files) -> None:
    async def body(network: MemoryNetwork, told: Any) -> None:
        answer = await ask(network, files.client_context(certificate=True))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert await refused(network, files.client_context())
        stranger = files.client_context()
        trustme.CA().issue_cert("operator@example.org").configure_cert(stranger)
        assert await refused(network, stranger)

    serve(ServerTls("control", cert=files.both, client_ca=files.ca), body)


def test_neither_silence_nor_plain_http_holds_a_connection(files: Files) -> None:
    async def body(network: MemoryNetwork, told: Any) -> None:
        silent = await network.connect("router", 443)
        plain = await network.connect("router", 443)
        await plain.send_all(GET)
        assert b"HTTP" not in await plain.receive_some()
        assert trio.current_time() == 0
        assert await silent.receive_some() == b""
        assert trio.current_time() == 10
        assert ClientLimit.HEADER_TIME in told
        silent.close()
        plain.close()

    serve(ServerTls("serving", cert=files.both), body)


def test_what_is_wrong_with_a_file_is_said_with_its_setting(files: Files, tmp_path: Path) -> None:
    other = Files(tmp_path)
    encrypted = tmp_path / "encrypted.pem"
    encrypted.write_bytes(locked(Path(files.key).read_bytes()))
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("")
    gone = str(tmp_path / "gone.pem")
    for arguments, setting, reason in (
        ({"cert": gone}, "serving.tls_cert_file", f"{gone}: cannot be read: No such file"),
        ({"cert": files.cert, "key": gone}, "serving.tls_key_file", f"{gone}: cannot be read"),
        ({"cert": str(nothing)}, "serving.tls_cert_file", "not certificate and key in PEM form"),
        ({"cert": files.cert}, "serving.tls_cert_file", "not certificate and key in PEM form"),
        (
            {"cert": files.cert, "key": other.key},
            "serving.tls_cert_file",
            f"{files.cert} and {other.key}: the key is not the certificate's",
        ),
        (
            {"cert": files.cert, "key": str(encrypted)},
            "serving.tls_cert_file",
            f"{files.cert} and {encrypted}: the key is encrypted",
        ),
        (
            {"cert": files.both, "client_ca": gone},
            "serving.tls_client_ca_file",
            f"{gone}: cannot be read",
        ),
        (
            {"cert": files.both, "client_ca": str(nothing)},
            "serving.tls_client_ca_file",
            f"{nothing}: not certificate",
        ),
    ):
        with pytest.raises(ConfigError) as refused:
            ServerTls("serving", **arguments)
        (line,) = refused.value.problems
        assert line.startswith(f"{setting}: "), line
        assert reason in line
