"""Calls of a running router's lifecycle routes."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError

from narwhal.cli.reach import reason_of
from narwhal.cli.running import fail

if TYPE_CHECKING:
    import click

    from narwhal.cli.reach import Reach

PATH = "/narwhal/lifecycle"
# A readmission waits for an engine at most a dozen times, each bounded by the fleet file; the
# rest is for routers that are set to be patient.
_PATIENCE_S = 300.0


_UNAUTHORIZED, _FORBIDDEN = 401, 403


class Caller:
    """Asks one router. What goes wrong is raised as an exit with 1, after one clear line."""

    def __init__(self, reach: Reach) -> None:
        self._asker = reach.asker()
        self._url = self._asker.url

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
        try:
            with self._asker.open(path, data, timeout=_PATIENCE_S) as answer:
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
        return fail(
            f"no router at {self._url}: {reason_of(error)}; say where it is with --url, or start "
            "it with `narwhal-trio serve`"
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
