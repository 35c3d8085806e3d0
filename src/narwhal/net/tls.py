"""TLS over a byte stream."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from narwhal.net.streams import RECEIVE_BYTES, ByteStream, Listener

if TYPE_CHECKING:
    import ssl

    from narwhal.net.certificates import ServerTls

# Reads of what a peer whose handshake failed had sent already: its first request at the most.
_MOST_UNREAD = 16


class _TrioStream(trio.abc.Stream):
    """A byte stream in the form that `trio.SSLStream` wants."""

    def __init__(self, inner: ByteStream) -> None:
        self.inner = inner

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self.inner.receive_some(max_bytes or RECEIVE_BYTES)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.inner.send_all(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self.inner.close()
        await trio.lowlevel.checkpoint()


class TlsStream(ByteStream):
    """TLS on top of another stream, which it owns.

    Nothing is done without waiting, since a record may need an exchange with the peer first:
    `send_nowait` takes nothing and `receive_nowait` has nothing. Closing drops the connection
    under the encryption, without a farewell; the peer has HTTP's own framing to tell a complete
    message from a cut one, and an end of file without farewell is accepted here likewise.
    """

    __slots__ = ("_closed", "_inner", "_ssl", "local", "peer")

    def __init__(
        self,
        inner: ByteStream,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None = None,
        server_side: bool = False,
    ) -> None:
        self._inner = inner
        self._closed = False
        self.peer = inner.peer
        self.local = inner.local
        self._ssl = trio.SSLStream(
            _TrioStream(inner),
            context,
            server_hostname=server_hostname,
            server_side=server_side,
            https_compatible=True,
        )

    async def do_handshake(self) -> None:
        """Establish encryption now, not with the first byte; errors as for receiving.

        The cause of a `trio.BrokenResourceError` says what was wrong, a certificate for one.
        A stream whose handshake was cancelled or failed is fit only to be closed.
        """
        self._check_open()
        try:
            await self._ssl.do_handshake()
        except trio.BrokenResourceError as error:
            raise self._error(error) from error.__cause__

    async def receive_some(self, max_bytes: int = RECEIVE_BYTES) -> bytes:  # noqa: D102
        self._check_open()
        try:
            return bytes(await self._ssl.receive_some(max_bytes))
        except trio.BrokenResourceError as error:
            raise self._error(error) from error

    async def send_all(self, data: bytes) -> None:  # noqa: D102
        self._check_open()
        try:
            await self._ssl.send_all(data)
        except trio.BrokenResourceError as error:
            raise self._error(error) from error

    def send_nowait(self, data: bytes) -> int:  # noqa: ARG002, D102
        self._check_open()
        return 0

    def receive_nowait(self, max_bytes: int = RECEIVE_BYTES) -> bytes | None:  # noqa: ARG002, D102
        self._check_open()
        return None

    def close(self, *, reset: bool = False) -> None:  # noqa: D102
        self._closed = True
        self._inner.close(reset=reset)

    def stale(self) -> bool:
        """Whether anything came in, be it only a record of TLS itself.

        Session tickets follow the handshake and are read along with the first response, so on
        a connection between two exchanges they are not in the way.
        """
        return self._inner.stale()

    def _check_open(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the connection was closed at this end")

    def _error(
        self, error: trio.BrokenResourceError
    ) -> trio.BrokenResourceError | trio.ClosedResourceError:
        if self._closed:
            return trio.ClosedResourceError("the connection was closed at this end")
        self._say_why()
        return trio.BrokenResourceError(f"TLS: {error.__cause__ or error}")

    def _say_why(self) -> None:
        """Send the alert that OpenSSL has ready for the peer, as far as it goes without waiting.

        Trio leaves it lying. Without it a client that shows no certificate, or speaks an old
        version, is left to guess why the connection ended.
        """
        outgoing = getattr(self._ssl, "_outgoing", None)
        alert = b"" if outgoing is None else outgoing.read()
        if not alert:
            return
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            self._inner.send_nowait(alert)
            self._inner.send_eof()
            # What is left unread when a connection is closed resets it, alert and all.
            for _ in range(_MOST_UNREAD):
                if not self._inner.receive_nowait():
                    break


class TlsListener(Listener):
    """A listener whose connections speak TLS; it owns `inner`.

    Each connection speaks what `tls` is when it is accepted, to its end. A handshake begins with
    the first read of a connection, in that connection's own time.
    """

    __slots__ = ("_inner", "_tls", "address")

    def __init__(self, inner: Listener, tls: ServerTls) -> None:
        self._inner = inner
        self._tls = tls
        self.address = inner.address

    async def accept(self) -> TlsStream:  # noqa: D102
        return self._encrypted(await self._inner.accept())

    def accept_nowait(self) -> TlsStream | None:  # noqa: D102
        stream = self._inner.accept_nowait()
        return None if stream is None else self._encrypted(stream)

    def _encrypted(self, stream: ByteStream) -> TlsStream:
        return TlsStream(stream, self._tls.context, server_side=True)

    def close(self) -> None:  # noqa: D102
        self._inner.close()
