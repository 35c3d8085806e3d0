"""The sections `slo` and `serving`: what is promised, and the life of one request."""

# No `from __future__ import annotations` where sections are declared: the annotations are read
# when the program runs.

from enum import StrEnum

import attrs

from narwhal.config.bounds import FRACTION, NOT_NEGATIVE, POSITIVE, at_least, between
from narwhal.config.settings import about, checked
from narwhal.config.texts import FilePath, KeysVariableName
from narwhal.model import StreamCommit, TtftScope


class Admission(StrEnum):
    """Who is let in."""

    PREDICTIVE = "predictive"
    """Whoever the measured profiles say can be served within the targets."""
    OPEN = "open"
    """Whoever there is room for."""


@attrs.frozen(kw_only=True, field_transformer=checked)
class Slo:
    """What a client is promised; admission and role control steer by it."""

    ttft_s: float = attrs.field(
        metadata=about(
            "Target for the time from a request's arrival to its first token.",
            unit="s",
            bounds=POSITIVE,
            example=2.0,
        )
    )
    tpot_s: float = attrs.field(
        metadata=about(
            "Target for the time between two tokens of one stream.",
            unit="s",
            bounds=POSITIVE,
            example=0.05,
        )
    )
    ttft_scope: TtftScope = attrs.field(
        default=TtftScope.PREFILL,
        metadata=about(
            "What `ttft_s` covers in projections: `prefill` ends with the prefill, `first_token` "
            "adds the handoff and the first decode step, as profiled, to what a client sees."
        ),
    )


@attrs.frozen(kw_only=True, field_transformer=checked)
class Serving:
    """How many requests are held at once, for how long, and how often they are tried."""

    admission: Admission = attrs.field(
        default=Admission.PREDICTIVE,
        metadata=about(
            "`predictive` admits what the profiles say can meet the targets and needs a profile "
            "store; `open` asks only whether there is room."
        ),
    )
    admission_margin: float = attrs.field(
        default=0.0,
        metadata=about(
            "Share by which a projection may exceed `slo.ttft_s` before it is refused, so that "
            "requests at the very edge are not let in and turned away by turns.",
            unit="fraction",
            bounds=NOT_NEGATIVE,
        ),
    )
    max_connections: int = attrs.field(
        default=512,
        metadata=about(
            "Requests admitted at the same time, over the whole fleet, and as many connections "
            "to engines.",
            unit="requests",
            bounds=at_least(1),
        ),
    )
    queue_capacity: int = attrs.field(
        default=0,
        metadata=about(
            "Requests that may wait to be admitted; `0` turns them away at once when all places "
            "are taken.",
            unit="requests",
            bounds=NOT_NEGATIVE,
        ),
    )
    queue_timeout_s: float = attrs.field(
        default=0.0,
        metadata=about(
            "Longest wait for admission, within what is left of the request's own deadline.",
            unit="s",
            bounds=NOT_NEGATIVE,
        ),
    )
    prefill_concurrency: int = attrs.field(
        default=0,
        metadata=about(
            "Prefill legs on one engine at the same time; `0` sets no limit.",
            unit="requests",
            bounds=NOT_NEGATIVE,
        ),
    )
    decode_concurrency: int = attrs.field(
        default=0,
        metadata=about(
            "Decode legs on one engine at the same time; `0` sets no limit.",
            unit="requests",
            bounds=NOT_NEGATIVE,
        ),
    )
    handoff_timeout_s: float = attrs.field(
        default=0.0,
        metadata=about(
            "Greatest age of a KV handoff, counted from the start of its prefill request, at "
            "which it may still go to a decode engine; `0` leaves the request's deadline as the "
            "only cap.",
            unit="s",
            bounds=NOT_NEGATIVE,
        ),
    )
    max_attempts: int = attrs.field(
        default=1,
        metadata=about(
            "How often one request may be run, each time with a prefill and a decode of its own.",
            unit="attempts",
            bounds=between(1, 3),
        ),
    )
    retry_base_s: float = attrs.field(
        default=0.1,
        metadata=about(
            "Ceiling of the first pause between attempts; it doubles with each, and the pause is "
            "drawn evenly between zero and the ceiling.",
            unit="s",
            bounds=NOT_NEGATIVE,
        ),
    )
    retry_cap_s: float = attrs.field(
        default=1.0,
        metadata=about(
            "What the ceiling of the pause grows to at most.", unit="s", bounds=NOT_NEGATIVE
        ),
    )
    retry_budget: int = attrs.field(
        default=10,
        metadata=about(
            "Retry credits at the start, and the most there can be; a retry takes one.",
            unit="credits",
            bounds=NOT_NEGATIVE,
        ),
    )
    retry_replenish: float = attrs.field(
        default=0.1,
        metadata=about(
            "Credits that come back with each request that succeeds.",
            unit="credits",
            bounds=FRACTION,
        ),
    )
    max_request_bytes: int = attrs.field(
        default=4_194_304,
        metadata=about(
            "Largest request body; counted while it is read, so a larger one is never held.",
            unit="bytes",
            bounds=at_least(1),
        ),
    )
    max_response_bytes: int = attrs.field(
        default=16_777_216,
        metadata=about(
            "Most bytes held for one attempt of a request that is not streamed, and for the "
            "events of a stream before its first token.",
            unit="bytes",
            bounds=at_least(1),
        ),
    )
    request_timeout_s: float = attrs.field(
        default=600.0,
        metadata=about(
            "Deadline of the whole request, from its head being read to its last byte being "
            "written to the client.",
            unit="s",
            bounds=POSITIVE,
        ),
    )
    prefill_timeout_s: float = attrs.field(
        default=120.0,
        metadata=about("Deadline of one prefill leg.", unit="s", bounds=POSITIVE),
    )
    graceful_timeout_s: float = attrs.field(
        default=30.0,
        metadata=about(
            "How long running requests may go on after the router was told to stop; `0` cuts "
            "them at once.",
            unit="s",
            bounds=NOT_NEGATIVE,
        ),
    )
    api_key_env: KeysVariableName | None = attrs.field(
        default=None,
        metadata=about(
            "Environment variable that holds the keys of clients; one of them must then come as "
            "`authorization: Bearer KEY` with every request on the data listener, but for "
            "`/health`, `/ready` and `/metrics`."
        ),
    )
    api_keys_file: FilePath | None = attrs.field(
        default=None,
        metadata=about(
            "File with further keys of clients, a line each; it is looked at every few seconds, "
            "so keys come and go without a restart."
        ),
    )
    metrics_need_key: bool = attrs.field(
        default=False,
        metadata=about(
            "Whether `/metrics` on the data listener asks for one of these keys as well."
        ),
    )
    tls_cert_file: FilePath | None = attrs.field(
        default=None,
        metadata=about(
            "Certificate chain (PEM) of the data listener, which then speaks TLS; read when the "
            "router starts and at every SIGHUP."
        ),
    )
    tls_key_file: FilePath | None = attrs.field(
        default=None,
        metadata=about(
            "Private key (PEM, not encrypted) of that certificate; `null` looks for it in the "
            "certificate's file."
        ),
    )
    max_client_connections: int = attrs.field(
        default=4096,
        metadata=about(
            "Connections that the data listener has open at a time; above it new ones wait in "
            "the backlog. `0` sets no limit.",
            unit="connections",
            bounds=NOT_NEGATIVE,
        ),
    )
    stream_commit: StreamCommit = attrs.field(
        default=StreamCommit.BEFORE_DECODE,
        metadata=about(
            "When a stream's status 200 goes out: `before_decode` as soon as prefill succeeded, "
            "`first_token` with the first token, so that an early decode failure keeps its status."
        ),
    )
