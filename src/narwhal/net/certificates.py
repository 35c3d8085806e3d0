"""What listeners speak TLS with: files of certificates and keys, read when they are asked for."""

from __future__ import annotations

import re
import ssl
from base64 import b64decode
from datetime import UTC, datetime

import attrs
import trio

from narwhal.model import ConfigError

# The first of these in a file is the listener's own, as OpenSSL takes it; others are its issuers.
_BLOCK = re.compile(rb"-----BEGIN (?:TRUSTED |X509 )?CERTIFICATE-----(.+?)-----END", re.DOTALL)
# Tags of DER, see RFC 5280, 4.1.
_VERSION = 0xA0
_UTC_TIME = 0x17
_LONG_LENGTH = 0x80
_PIVOT_YEAR = 50
"""Years of two digits from here on are of the last century: RFC 5280, 4.1.2.5.1."""


@attrs.frozen
class _Loaded:
    context: ssl.SSLContext
    expires_at: float


class ServerTls:
    """TLS 1.2 or later for listeners, from the files that the settings in `section` name.

    With `client_ca` a client must show a certificate of one of these authorities. The files are
    read when this is made, which blocks, and again by `reload`. Both raise `ConfigError`, whose
    line names the setting and the file, if one cannot be used.
    """

    def __init__(
        self, section: str, *, cert: str, key: str | None = None, client_ca: str | None = None
    ) -> None:
        self._section = section
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self._loaded = self._load()

    @property
    def context(self) -> ssl.SSLContext:
        """What a new connection is to speak with."""
        return self._loaded.context

    @property
    def expires_at(self) -> float:
        """When the certificate expires that new connections are shown, in Unix time."""
        return self._loaded.expires_at

    @property
    def source(self) -> str:
        """The setting and the file that the certificate is from, for people."""
        return f"{self._section}.tls_cert_file: {self._cert}"

    async def reload(self) -> None:
        """Read the files again, in a thread. New connections get what they hold now.

        With an error or a cancel, all stays as it was. Connections that there are go on; sessions
        of before are not resumed, so that who returns is shown the new certificate as well.
        """
        self._loaded = await trio.to_thread.run_sync(self._load, abandon_on_cancel=True)

    def _load(self) -> _Loaded:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(["http/1.1"])
        pem = _read(f"{self._section}.tls_cert_file", self._cert)
        if self._key is not None:
            _read(f"{self._section}.tls_key_file", self._key)
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
            expires_at = expiry(pem)
        except (OSError, ValueError) as error:  # those of TLS among them
            files = self._cert if self._key is None else f"{self._cert} and {self._key}"
            text = f"{self._section}.tls_cert_file: {files}: {_reason(error)}"
            raise ConfigError([text]) from error
        if self._client_ca is not None:
            self._ask_clients(context, self._client_ca)
        return _Loaded(context, expires_at)

    def _ask_clients(self, context: ssl.SSLContext, path: str) -> None:
        setting = f"{self._section}.tls_client_ca_file"
        _read(setting, path)
        try:
            context.load_verify_locations(path)
        except OSError as error:  # those of TLS among them
            raise ConfigError([f"{setting}: {path}: {_reason(error)}"]) from error
        context.verify_mode = ssl.CERT_REQUIRED


def _read(setting: str, path: str) -> bytes:
    """OpenSSL does not say which of its files it cannot read."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - the same call that OpenSSL makes
            return file.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError([f"{setting}: {path}: cannot be read: {reason}"]) from error


def _no_password() -> str:
    raise ValueError("the key is encrypted, and nobody is there to type its password")


def _reason(error: OSError | ValueError) -> str:
    """What is wrong with files of certificates, without OpenSSL's numbers."""
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is not the certificate's"
        return f"not certificate and key in PEM form ({error.reason or 'no such block'})"
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    return str(error)


def expiry(pem: bytes) -> float:
    """When the first certificate in `pem` expires, in Unix time; raises `ValueError`.

    OpenSSL has found it to be a certificate, but Python does not hand on what else it finds in
    one's own.
    """
    try:
        found = _BLOCK.search(pem)
        der = b64decode(found[1] if found else b"")
        at, _ = _content(der, 0)
        at, _ = _content(der, at)
        skipped = 4 if der[at] == _VERSION else 3  # the number, how it is signed, and by whom
        for _ in range(skipped):
            _, at = _content(der, at)
        at, _ = _content(der, at)
        _, at = _content(der, at)  # when it begins to hold
        start, end = _content(der, at)
        return _unix_time(der[at], der[start:end].decode("ascii"))
    except (IndexError, ValueError) as error:
        raise ValueError("the certificate does not say until when it holds") from error


def _content(der: bytes, at: int) -> tuple[int, int]:
    """Where the content of the element at `at` begins and where it ends."""
    length, start = der[at + 1], at + 2
    if length >= _LONG_LENGTH:
        start += length - _LONG_LENGTH
        length = int.from_bytes(der[at + 2 : start])
    return start, start + length


def _unix_time(tag: int, text: str) -> float:
    if tag == _UTC_TIME:
        text = f"{19 if int(text[:2]) >= _PIVOT_YEAR else 20}{text}"
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
