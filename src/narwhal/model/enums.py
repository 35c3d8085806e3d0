"""The closed vocabularies of the router: what a request, an engine and a limit can be."""

from enum import StrEnum


class Role(StrEnum):
    """Which leg of a request an engine is offered for; any engine can do either."""

    PREFILL = "prefill"
    DECODE = "decode"


class Dialect(StrEnum):
    """The HTTP API an engine speaks."""

    VLLM = "vllm"


class StreamCommit(StrEnum):
    """When a streaming response commits its status 200."""

    BEFORE_DECODE = "before_decode"
    FIRST_TOKEN = "first_token"


class TtftScope(StrEnum):
    """What the target for the time to the first token covers."""

    PREFILL = "prefill"
    """Arrival to the end of the prefill."""
    FIRST_TOKEN = "first_token"
    """The handoff and the first decode step as well: what a client sees."""


class Route(StrEnum):
    """The two ways of asking for a completion."""

    COMPLETIONS = "completions"
    CHAT = "chat"


class Phase(StrEnum):
    """Where a request's time goes. At any moment a request is in exactly one phase."""

    INGRESS = "ingress"
    """Reading the body and validating it."""
    TOKENIZE = "tokenize"
    """Counting the prompt's tokens on an engine."""
    QUEUE = "queue"
    """Waiting to be admitted."""
    PREFILL = "prefill"
    """From looking for a prefill engine to the end of its answer."""
    HANDOFF = "handoff"
    """From the prefill's answer to the decode request being written."""
    DECODE = "decode"
    """From the written decode request to the engine's last byte, client writes included."""
    BACKOFF = "backoff"
    """Between two attempts."""
    RESPOND = "respond"
    """Writing what is left to write once the engines are done: an error, an assembled body."""


class Limit(StrEnum):
    """The named time limits. Each is one cancel scope; see the table in docs/architecture.md."""

    REQUEST = "request"
    QUEUE = "queue"
    TOKENIZE = "tokenize"
    PREFILL = "prefill"
    HANDOFF = "handoff"
    FIRST_TOKEN = "first_token"
    READ_GAP = "read_gap"
    POOL = "pool"
    CONNECT = "connect"
    HEALTH = "health"
    GRACE = "grace"
    """Shutdown: what was still running at the end of `serving.graceful_timeout_s`."""


class ClientLimit(StrEnum):
    """What a listener bears of one client, before an application hears of a request."""

    HEADER_TIME = "header_time"
    """`http.header_timeout_s`."""
    HEADER_BYTES = "header_bytes"
    """`http.max_header_bytes`."""
    HEADER_LINES = "header_lines"
    """`http.max_headers`."""
    URI_BYTES = "uri_bytes"
    """`http.max_uri_bytes`."""
    BODY_RATE = "body_rate"
    """`http.min_body_bytes_per_s`, past `http.body_grace_s`."""
    PIPELINED = "pipelined"
    """Bytes of later requests sent ahead."""
    CONNECTIONS = "connections"
    """`serving.max_client_connections`: a time in which new connections had to wait."""


class Terminal(StrEnum):
    """How an original request ended. Each request reaches exactly one."""

    COMPLETED = "completed"
    INVALID = "invalid"
    """The client's fault: 400, 404, 413, or an engine's own 4xx."""
    REJECTED = "rejected"
    """Turned away before its body was looked at: the retention ceiling, not ready, draining."""
    REFUSED = "refused"
    """Looked at and not admitted: the queue is full, or the projection says it cannot be met."""
    EXPIRED = "expired"
    """A limit of the router's ended it (queue, handoff, or the whole request)."""
    FAILED = "failed"
    """An engine, or the router itself, failed it."""
    CANCELLED = "cancelled"
    """The client left, or the embedding application cancelled it."""

    @property
    def turned_away(self) -> bool:
        """Whether it was never admitted."""
        return self in {Terminal.REJECTED, Terminal.REFUSED}


class Fault(StrEnum):
    """Whose fault an error is."""

    CLIENT = "client"
    ENGINE = "engine"
    ROUTER = "router"
    OPERATOR = "operator"


class FailureClass(StrEnum):
    """What a failed leg says about the engine that ran it.

    `NEUTRAL` and `LOCAL` say nothing: an engine is right to answer 4xx to a bad request, and
    a router that ran out of connections has only itself to blame.
    """

    CONNECTION = "connection"
    TIMEOUT = "timeout"
    OVERLOAD = "overload"
    INFERENCE_STATUS = "inference_status"
    KV_HANDOFF = "kv_handoff"
    STREAM = "stream"
    LIVENESS = "liveness"
    NEUTRAL = "neutral"
    LOCAL = "local"
