"""How `top` asks a router for its state."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING
from urllib.error import HTTPError, URLError

import attrs

from narwhal.cli.reach import message_in, no_answer
from narwhal.cli.top_state import parse_state

if TYPE_CHECKING:
    from narwhal.cli.reach import Asker
    from narwhal.cli.top_state import State

PATH = "/narwhal/state"
# Of a fleet of a thousand engines it is one megabyte.
_MOST_BYTES = 64 << 20


class Unreachable(Exception):
    """There is no state to be had; the message says why, and what to do if something can be."""


@attrs.frozen
class StateCall:
    """Asks one router. Blocks."""

    asker: Asker
    patience_s: float = 5.0
    """For connecting, and for each read."""

    def __call__(self) -> State:
        """The state now. Raises `Unreachable`."""
        try:
            with self.asker.open(PATH, timeout=self.patience_s) as answer:
                return parse_state(answer.read(_MOST_BYTES))
        except HTTPError as error:
            with error:
                raise Unreachable(self._refused(error.code, error.read(_MOST_BYTES))) from None
        except (URLError, OSError, http.client.HTTPException) as error:
            raise Unreachable("; ".join(filter(None, no_answer(error, self.asker.url)))) from error
        except ValueError:
            raise Unreachable(f"what answers there is no router of this kind ({PATH})") from None

    def _refused(self, status: int, body: bytes) -> str:
        if status == 403 and (said := message_in(body)):  # noqa: PLR2004 - FORBIDDEN
            return f"{said} ({status})"
        if status in (401, 403):
            return (
                f"it asks for a token ({status}); give the name of the environment variable that "
                "holds it with --token-env"
            )
        return f"what answers there is no router of this kind ({PATH}: {status})"
