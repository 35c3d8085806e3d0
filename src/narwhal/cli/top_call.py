"""How `top` asks a router for its state."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import attrs

from narwhal.cli.running import fail
from narwhal.cli.top_state import parse_state

if TYPE_CHECKING:
    from narwhal.cli.top_state import State

PATH = "/narwhal/state"
# Of a fleet of a thousand engines it is one megabyte.
_MOST_BYTES = 64 << 20


class Unreachable(Exception):
    """There is no state to be had; the message says why, and what to do if something can be."""


class _NoRedirects(HTTPRedirectHandler):
    """A router sends nobody elsewhere, and a token is for nobody else."""

    def redirect_request(self, *_args: Any, **_more: Any) -> None:
        return None


@attrs.frozen
class StateCall:
    """Asks one router, with a token if there is one. Blocks."""

    url: str
    token: str | None = None
    patience_s: float = 5.0
    """For connecting, and for each read."""

    def check(self) -> None:
        """Raises an exit with 1 for a URL that cannot be one of a router."""
        if urlsplit(self.url).scheme not in ("http", "https") or not urlsplit(self.url).hostname:
            raise fail(
                f"--url {self.url}: give the router's address, such as http://127.0.0.1:8000"
            )

    def __call__(self) -> State:
        """The state now. Raises `Unreachable`."""
        headers = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        request = Request(self.url.rstrip("/") + PATH, headers=headers)  # noqa: S310 - checked
        # The router is a machine of one's own: no proxy that is set for the world is asked.
        opener = build_opener(ProxyHandler({}), _NoRedirects())
        try:
            with opener.open(request, timeout=self.patience_s) as answer:
                return parse_state(answer.read(_MOST_BYTES))
        except HTTPError as error:
            with error:
                raise Unreachable(self._refused(error.code)) from None
        except (URLError, OSError, http.client.HTTPException) as error:
            raise Unreachable(_reason(error)) from error
        except ValueError:
            raise Unreachable(f"what answers there is no router of this kind ({PATH})") from None

    def _refused(self, status: int) -> str:
        if status in (401, 403):
            return (
                f"it asks for a token ({status}); give the name of the environment variable that "
                "holds it with --token-env"
            )
        return f"what answers there is no router of this kind ({PATH}: {status})"


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return getattr(reason, "strerror", None) or str(reason) or type(error).__name__
