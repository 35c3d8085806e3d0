"""Calls of a running router's control routes, and the options that say how to reach them."""

from __future__ import annotations

import http.client
import json
import os
import ssl
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPRedirectHandler,
    HTTPSHandler,
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

PATH = "/narwhal/lifecycle"
# A readmission waits for an engine at most a dozen times, each bounded by the fleet file; the
# rest is for routers that are set to be patient.
_PATIENCE_S = 300.0


_UNAUTHORIZED, _FORBIDDEN = 401, 403


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

    def token(self) -> str | None:
        """The token; a variable without one is one clear line and an exit with 1."""
        if self.token_env is None:
            return None
        if complaint := variable_complaint(self.token_env, os.environ):
            raise fail(f"--token-env {complaint}")
        return os.environ[self.token_env]

    def tls(self) -> ssl.SSLContext:
        """What to speak TLS with; a file that cannot be used is one clear line likewise."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file is not None:
                context.load_cert_chain(self.cert_file, password=lambda: "")
        except (OSError, ValueError) as error:  # those of TLS among them
            files = ", ".join(each for each in (self.ca_file, self.cert_file) if each)
            raise fail(f"--ca-file, --cert-file: {files}: {error}") from error
        return context


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


class _NoRedirects(HTTPRedirectHandler):
    """Nobody else is to get the token, or to answer in the router's stead."""

    def redirect_request(self, *_: object) -> None:
        return None


class Caller:
    """Asks one router. What goes wrong is raised as an exit with 1, after one clear line."""

    def __init__(self, reach: Reach) -> None:
        url = reach.url
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            shown = url.rpartition("@")[2] if "@" in url else url
            raise fail(f"--url {shown}: give the router's address, such as http://127.0.0.1:8000")
        self._url = url.rstrip("/")
        self._headers = {"content-type": "application/json"}
        if (token := reach.token()) is not None:
            self._headers["authorization"] = f"Bearer {token}"
        # The router is a machine of one's own: no proxy that is set for the world is asked.
        handlers = [ProxyHandler({}), _NoRedirects()]
        if parts.scheme == "https":
            handlers.append(HTTPSHandler(context=reach.tls()))
        self._opener = build_opener(*handlers)

    def engines(self) -> list[dict[str, Any]]:
        """Every engine, as `GET /narwhal/lifecycle` has it."""
        status, body = self._call(PATH)
        if status != 200 or "engines" not in body:  # noqa: PLR2004 - OK
            raise self._stranger(status)
        return list(body["engines"])

    def order(self, what: str, **body: object) -> tuple[int, dict[str, Any]]:
        """Have the router `drain` or `readmit`; the status and body of its answer."""
        status, answer = self._call(f"{PATH}/{what}", body)
        if not ("engines" in answer or "engine" in answer or "error" in answer):
            raise self._stranger(status)
        return status, answer

    def _call(
        self, path: str, order: dict[str, object] | None = None
    ) -> tuple[int, dict[str, Any]]:
        data = None if order is None else json.dumps(order).encode()
        request = Request(  # noqa: S310 - the scheme was checked
            self._url + path, data=data, headers=self._headers
        )
        try:
            with self._opener.open(request, timeout=_PATIENCE_S) as answer:
                return answer.status, _object(answer.read())
        except HTTPError as error:
            with error:
                status, body = error.code, _object(error.read())
            if status in (_UNAUTHORIZED, _FORBIDDEN):
                raise self._denied(body) from None
            return status, body
        except (URLError, OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> click.exceptions.Exit:
        reason = getattr(error, "reason", error)
        text = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
        return fail(
            f"no router at {self._url}: {text}; say where it is with --url, or start it with "
            "`narwhal-trio serve`"
        )

    def _denied(self, body: dict[str, Any]) -> click.exceptions.Exit:
        error = body.get("error")
        said = str(error.get("message", "")) if isinstance(error, dict) else ""
        return fail(
            f"{self._url} lets nobody in without the right token: name the environment variable "
            f"that holds it with --token-env. {said}".rstrip()
        )

    def _stranger(self, status: int) -> click.exceptions.Exit:
        return fail(
            f"what answers at {self._url} is no router of this kind ({PATH}: {status}); say where "
            "it is with --url"
        )


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
