"""How commands reach the control routes of a running router: address, token, TLS."""

from __future__ import annotations

import http.client
import json
import os
import ssl
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import (
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

import attrs
import click

from narwhal.cli.running import fail
from narwhal.config.environment import variable_complaint

if TYPE_CHECKING:
    from collections.abc import Callable


class _NoRedirects(HTTPRedirectHandler):
    """A router sends nobody elsewhere, and a token is for nobody else."""

    def redirect_request(self, *_: object) -> None:
        return None


@attrs.frozen
class Asker:
    """Asks one router, which is where its options say."""

    url: str
    headers: dict[str, str] = attrs.field(repr=False)
    opener: OpenerDirector = attrs.field(repr=False)

    def open(self, path: str, data: bytes | None = None, *, timeout: float) -> Any:
        """The answer, a context manager: `urllib`'s own. Blocks; raises what that raises."""
        request = Request(self.url + path, data=data, headers=self.headers)  # noqa: S310 - checked
        return self.opener.open(request, timeout=timeout)


def no_answer(error: Exception, url: str) -> tuple[str, str | None]:
    """Why there was no answer from `url`, and what to do if the reason tells."""
    reason = getattr(error, "reason", error)
    secure = url.startswith("https:")
    if isinstance(reason, ssl.SSLCertVerificationError):
        why = f"its certificate is not trusted: {reason.verify_message}"
        return why, "name the file (PEM) of who issued it with --ca-file"
    if isinstance(reason, ssl.SSLError) and reason.reason == "WRONG_VERSION_NUMBER":
        return "it does not speak TLS", "begin its --url with http:"
    if "CERTIFICATE_REQUIRED" in str(reason):
        return "it asks for a certificate", "give one with --cert-file"
    if isinstance(reason, http.client.RemoteDisconnected):
        why = "it closed the connection without an answer"
        if secure:
            return why, "if it asks clients for a certificate, show one with --cert-file"
        return why, "if it speaks TLS, begin its --url with https:"
    return getattr(reason, "strerror", None) or str(reason) or type(error).__name__, None


@attrs.frozen
class Reach:
    """How to reach the control routes of a router, as the command line says it."""

    url: str
    token_env: str | None = None
    """The environment variable with the token, if the router asks for one."""
    ca_file: str | None = None
    """Certificates (PEM) to trust instead of the system's."""
    cert_file: str | None = None
    """A certificate of one's own with its key (PEM), if the router asks for one."""

    def asker(self) -> Asker:
        """Read token and files; what cannot be used is one clear line, and an exit with 1."""
        url = urlsplit(self.url)
        if url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc:
            shown = self.url.rpartition("@")[2]  # what is before it may be a password
            raise fail(f"--url {shown}: give the router's address, such as http://127.0.0.1:8000")
        headers = {"content-type": "application/json"}
        if (token := self._token()) is not None:
            headers["authorization"] = f"Bearer {token}"
        # The router is a machine of one's own: no proxy that is set for the world is asked.
        handlers = [ProxyHandler({}), _NoRedirects()]
        if url.scheme == "https":
            handlers.append(HTTPSHandler(context=self._tls()))
        return Asker(self.url.rstrip("/"), headers, build_opener(*handlers))

    def _token(self) -> str | None:
        if self.token_env is None:
            return None
        if complaint := variable_complaint(self.token_env, os.environ):
            raise fail(f"--token-env {complaint}; export it with the router's token")
        return os.environ[self.token_env]

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, password=lambda: "")
        except (OSError, ValueError) as error:  # those of TLS among them
            files = ", ".join(each for each in (self.ca_file, self.cert_file) if each)
            raise fail(f"--ca-file, --cert-file: {files}: {error}") from error
        return context


def message_in(body: bytes) -> str:
    """What an error of the router says, if that is one."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""


def reach_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options `--url`, `--token-env`, `--ca-file` and `--cert-file`.

    The command gets them as `reach`, a `Reach`.
    """

    def reached(
        *, url: str, token_env: str | None, ca_file: str | None, cert_file: str | None, **rest: Any
    ) -> None:
        command(reach=Reach(url, token_env, ca_file, cert_file), **rest)

    reached.__doc__ = command.__doc__
    wrapped: Callable[..., None] = reached
    wrapped.__dict__.update(command.__dict__)  # the options that it has already
    for option in (
        click.option(
            "--cert-file",
            type=click.Path(),
            help="Certificate and key (PEM) to show to a router that asks for one.",
        ),
        click.option("--ca-file", type=click.Path(), help="Certificates (PEM) to trust for https."),
        click.option(
            "--token-env",
            metavar="NAME",
            help="Environment variable with the token of the router's control routes.",
        ),
        click.option(
            "--url", default="http://127.0.0.1:8000", show_default=True, help="The router."
        ),
    ):
        wrapped = option(wrapped)
    return wrapped
