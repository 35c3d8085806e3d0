"""Calls of a running router's lifecycle routes."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from narwhal.cli.running import fail

if TYPE_CHECKING:
    import click

PATH = "/narwhal/lifecycle"
# A readmission waits for an engine at most a dozen times, each bounded by the fleet file; the
# rest is for routers that are set to be patient.
_PATIENCE_S = 300.0


class Caller:
    """Asks one router. What goes wrong is raised as an exit with 1, after one clear line."""

    def __init__(self, url: str) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise fail(f"--url {url}: give the router's address, such as http://127.0.0.1:8000")
        self._url = url.rstrip("/")
        # The router is a machine of one's own: no proxy that is set for the world is asked.
        self._opener = build_opener(ProxyHandler({}))

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
            self._url + path, data=data, headers={"content-type": "application/json"}
        )
        try:
            with self._opener.open(request, timeout=_PATIENCE_S) as answer:
                return answer.status, _object(answer.read())
        except HTTPError as error:
            with error:
                return error.code, _object(error.read())
        except (URLError, OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> click.exceptions.Exit:
        reason = getattr(error, "reason", error)
        text = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
        return fail(
            f"no router at {self._url}: {text}; say where it is with --url, or start it with "
            "`narwhal-trio serve`"
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
