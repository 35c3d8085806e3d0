"""Who may use which routes. Synchronous: heads of requests in, reasons to deny them out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from narwhal.app.keys import KeyFile, KeyRing, warn_of_short_keys
from narwhal.app.pages import error
from narwhal.config import client_keys, control_token
from narwhal.config.binds import is_address, is_loopback, split_bind
from narwhal.telemetry import Denial

if TYPE_CHECKING:
    from collections.abc import Mapping

    from narwhal.app.pages import Answer
    from narwhal.app.types import Scope
    from narwhal.config import FleetConfig

# What proxies add. Whoever configured one to lead here did not have the control routes in mind.
_PASSED_ON = frozenset(
    {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"}
)
# What browsers say of a request that a page of this very address, or the person at it, made.
_OWN_SITES = frozenset({b"same-origin", b"none"})
_HOST = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|([^:]+))(?::[0-9]*)?")

_KEY_NEEDED = "Send one of the router's API keys as `authorization: Bearer KEY`"
_TOKEN_NEEDED = "Send the token of the control routes as `authorization: Bearer TOKEN`"
_WITH_A_TOKEN = "With control.token_env set, whoever has the token is let in."
_REASONS = {
    Denial.BROWSER: "Control routes take no requests of web pages.",
    Denial.HOST: "Control routes are not served under this host name; use the IP address.",
    Denial.PROXIED: "Control routes take no requests that a proxy passed on.",
    Denial.PLACE: "Control routes are not served on this address; they are on loopback, or where "
    "control.bind says.",
}


@attrs.define
class Access:
    """What is asked of requests: keys of clients, the token of operators, and where it came in."""

    clients: KeyRing | None = None
    """`None`: every client is served."""
    operators: KeyRing | None = None
    """`None`: control routes are for whoever reaches them in earnest, see `denied_control`."""
    metrics_need_key: bool = False
    names: frozenset[str] = frozenset()
    """Host names, in lower case, that requests to control routes may use beside `localhost`."""
    key_file: KeyFile | None = None

    @classmethod
    def of(cls, config: FleetConfig, environ: Mapping[str, str]) -> Access:
        """Read keys and token as `config` says. Raises `ConfigError` if one cannot be used."""
        serving = config.serving
        lasting = client_keys(config, environ)
        warn_of_short_keys("serving.api_key_env", lasting)
        key_file: KeyFile | None = None
        others: tuple[str, ...] = ()
        if serving.api_keys_file is not None:
            key_file = KeyFile(serving.api_keys_file)
            others = key_file.read() or ()
            warn_of_short_keys("serving.api_keys_file", others)
        token, bind = control_token(config, environ), config.control.bind
        if token is not None:
            warn_of_short_keys("control.token_env", (token,))
        return cls(
            clients=KeyRing(lasting, others) if lasting or others else None,
            operators=None if token is None else KeyRing((token,)),
            metrics_need_key=serving.metrics_need_key,
            names=frozenset() if bind is None else frozenset([split_bind(bind)[0].lower()]),
            key_file=key_file,
        )

    def denied_control(
        self, scope: Scope, *, own_listener: bool, secret: bool = True
    ) -> Denial | None:
        """Why a request to a control route is denied, `None` if it is not.

        What is not `secret`, a page that asks for the token, is there without it. With a token,
        only the token counts, and where it came in: on a listener that has other routes as well,
        control routes are for connections within this machine. Without one, the request must also
        not look as if a web page or a proxy made it.
        """
        if not own_listener and not _within_machine(scope):
            return Denial.PLACE
        if self.operators is not None:
            return self.operators.denial(scope["headers"]) if secret else None
        return self._suspicion(scope)

    def _suspicion(self, scope: Scope) -> Denial | None:
        """What a request shows of having been made by somebody who should not.

        A page of another site can have a browser send requests here; it cannot keep the browser
        from saying so. And a site whose name it points to this machine ("DNS rebinding") is, for
        the browser, the same site: but then the host is that name, and not an address or this
        machine's own.
        """
        if b"%" in scope.get("raw_path", b""):
            # No path here needs an escape: it is of use only to get past a filter in front.
            return Denial.PROXIED
        headers = scope["headers"]
        for name, value in headers:
            if name in _PASSED_ON:
                return Denial.PROXIED
            if name == b"origin" or (name == b"sec-fetch-site" and value.lower() not in _OWN_SITES):
                return Denial.BROWSER
        server = scope.get("server")
        names = {"localhost", server[0] if server else None, *self.names}
        hosts = [value for name, value in headers if name == b"host"]
        return None if all(_is_one_of(host, names) for host in hosts) else Denial.HOST


def _within_machine(scope: Scope) -> bool:
    """Whether the connection was made to a loopback address, or not over IP at all.

    A server that does not say is taken at its word: it has no address to speak of.
    """
    server = scope.get("server")
    host = server[0] if server else None
    return host is None or not is_address(host) or is_loopback(host)


def _is_one_of(host: bytes, names: set[str | None]) -> bool:
    """Whether a `host` header has one of `names`, or an IP address, which no site can be called."""
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = (found[1] or found[2]).decode("latin-1").lower().rstrip(".")
    return name in names or is_address(name)


def denied_client(denial: Denial) -> Answer:
    """The 401 that a client without a key gets, in the shape that OpenAI's own clients know."""
    return _unauthorized(denial, _KEY_NEEDED, code="invalid_api_key")


def denied_operator(denial: Denial) -> Answer:
    """What an operator, or somebody who is none, is told."""
    if denial in (Denial.NO_KEY, Denial.WRONG_KEY):
        return _unauthorized(denial, _TOKEN_NEEDED, code="invalid_token")
    more = "" if denial is Denial.PLACE else f" {_WITH_A_TOKEN}"
    return error(403, _REASONS[denial] + more, code="control_denied")


def _unauthorized(denial: Denial, what: str, *, code: str) -> Answer:
    wrong = "; the one that came is not among them" if denial is Denial.WRONG_KEY else ""
    status, body, headers = error(401, f"{what}{wrong}.", code=code)
    return status, body, [*headers, (b"www-authenticate", b"Bearer")]
