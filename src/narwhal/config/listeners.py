"""The sections `control` and `http`: who may steer the router, and what clients may do to it."""

# No `from __future__ import annotations` where sections are declared: the annotations are read
# when the program runs.

import attrs

from narwhal.config.bounds import NOT_NEGATIVE, POSITIVE, at_least
from narwhal.config.settings import about, checked
from narwhal.config.texts import Bind, FilePath, VariableName


@attrs.frozen(kw_only=True, field_transformer=checked)
class Control:
    """Where the control routes are served, and to whom."""

    bind: Bind | None = attrs.field(
        default=None,
        metadata=about(
            "Address of a listener of their own. Without it they are on the data listener while "
            "that is bound to loopback, else on a free port of 127.0.0.1 that is named at start."
        ),
    )
    token_env: VariableName | None = attrs.field(
        default=None,
        metadata=about(
            "Environment variable that holds the bearer token which every request to a control "
            "route must then carry."
        ),
    )
    tls_cert_file: FilePath | None = attrs.field(
        default=None,
        metadata=about(
            "Certificate chain (PEM) of the control listener, which then speaks TLS and is never "
            "the data listener; read when the router starts and at every SIGHUP."
        ),
    )
    tls_key_file: FilePath | None = attrs.field(
        default=None,
        metadata=about(
            "Private key (PEM, not encrypted) of that certificate; `null` looks for it in the "
            "certificate's file."
        ),
    )
    tls_client_ca_file: FilePath | None = attrs.field(
        default=None,
        metadata=about(
            "Certificates (PEM) of the authorities of which a client must have one of its own to "
            "connect to the control listener."
        ),
    )


@attrs.frozen(kw_only=True, field_transformer=checked)
class Http:
    """What both listeners bear of one client, before the application hears of a request."""

    header_timeout_s: float = attrs.field(
        default=10.0,
        metadata=about(
            "From the connection, its TLS handshake included, or the first byte of a later "
            "request, to the complete head.",
            unit="s",
            bounds=POSITIVE,
        ),
    )
    keep_alive_timeout_s: float = attrs.field(
        default=75.0,
        metadata=about(
            "Idle time after which a connection is closed; keep it above that of a load balancer "
            "in front, so that it is that one which closes.",
            unit="s",
            bounds=POSITIVE,
        ),
    )
    max_header_bytes: int = attrs.field(
        default=65_536,
        metadata=about(
            "Request line and headers together, line ends too; more is answered with 431.",
            unit="bytes",
            bounds=at_least(1024),
        ),
    )
    max_headers: int = attrs.field(
        default=128,
        metadata=about(
            "Header lines; more is answered with 431.", unit="lines", bounds=at_least(8)
        ),
    )
    max_uri_bytes: int = attrs.field(
        default=8192,
        metadata=about(
            "The request target; more is answered with 414.", unit="bytes", bounds=at_least(64)
        ),
    )
    body_grace_s: float = attrs.field(
        default=20.0,
        metadata=about(
            "Seconds that any body may take; each `min_body_bytes_per_s` bytes that arrive give "
            "it another one. A body that takes longer is answered with 408.",
            unit="s",
            bounds=POSITIVE,
        ),
    )
    min_body_bytes_per_s: float = attrs.field(
        default=500.0,
        metadata=about(
            "Least average rate of a body past its grace; `0` leaves the request's deadline as "
            "the only bound.",
            unit="bytes/s",
            bounds=NOT_NEGATIVE,
        ),
    )
