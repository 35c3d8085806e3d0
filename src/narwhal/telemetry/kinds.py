"""The closed vocabularies of metrics and journal, beside those of `narwhal.model`."""

from enum import StrEnum


class Kind(StrEnum):
    """What may happen to a metric's value."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Scale(StrEnum):
    """What a histogram's buckets are multiples of; see `buckets`."""

    TTFT = "ttft"
    TPOT = "tpot"
    REQUEST = "request"
    RATIO = "ratio"
    LAG = "lag"


class Endpoint(StrEnum):
    """What was asked for; every path that is not served is `OTHER`."""

    COMPLETIONS = "completions"
    CHAT = "chat"
    MODELS = "models"
    HEALTH = "health"
    READY = "ready"
    METRICS = "metrics"
    OPENAPI = "openapi"
    STATE = "state"
    LIFECYCLE = "lifecycle"
    UI = "ui"
    OTHER = "other"


class Door(StrEnum):
    """Which listener a client came in by."""

    DATA = "data"
    CONTROL = "control"


class Denial(StrEnum):
    """Why a request was not let through to what it asked for."""

    NO_KEY = "no_key"
    """It carried none, or more than one."""
    WRONG_KEY = "wrong_key"
    """It carried a key or token that is none of those that there are."""
    BROWSER = "browser"
    """A control route, and a page of another site seems to have sent it."""
    HOST = "host"
    """A control route, and the name of another machine."""
    PROXIED = "proxied"
    """A control route, and somebody passed it on."""
    PLACE = "place"
    """A control route, and a way that leads here from other machines."""


class StatusClass(StrEnum):
    """The first digit of an answer's status; `NONE` where the client got no answer at all."""

    SUCCESS = "2xx"
    CLIENT = "4xx"
    SERVER = "5xx"
    NONE = "none"
    OTHER = "other"


class TokenKind(StrEnum):
    """Which side of a completion a token is on."""

    PROMPT = "prompt"
    COMPLETION = "completion"


class AttemptResult(StrEnum):
    """How one attempt ended; an attempt is a whole prefill and decode."""

    COMPLETED = "completed"
    FAILED = "failed"
    """A leg of it failed, whether or not another attempt followed."""
    ABANDONED = "abandoned"
    """Ended from outside: the client left, the request's own deadline passed, shutdown."""


class Pool(StrEnum):
    """The connection pools each engine has."""

    SERVING = "serving"
    COUNTING = "counting"
    CONTROL = "control"


class PoolSlot(StrEnum):
    """What a pool counts: open connections by use, and requests waiting for one."""

    IDLE = "idle"
    BUSY = "busy"
    WAITING = "waiting"


class Change(StrEnum):
    """What becomes of the router as a whole, between its start and its stop."""

    DRAINING = "draining"
    """It takes nothing new any more, and stops when what it has is done."""
    DEGRADED = "degraded"
    """It takes nothing new while something is wrong with its monitor."""
    RECOVERED = "recovered"
    """Nothing is wrong any more."""


class Probe(StrEnum):
    """What an engine is asked on purpose."""

    HEALTH = "health"
    """Whether it is well."""
    VERIFICATION = "verification"
    """To generate."""


class ProbeResult(StrEnum):
    """What came of it."""

    PASSED = "passed"
    FAILED = "failed"
    UNSURE = "unsure"
    """It says nothing of the engine."""


class PassResult(StrEnum):
    """How a monitor pass went; one stage that fails is enough."""

    PASSED = "passed"
    FAILED = "failed"


class Target(StrEnum):
    """The targets of the fleet file, under `slo`."""

    TTFT = "ttft"
    """`slo.ttft_s`, of the stretch of time that `slo.ttft_scope` names."""
    TPOT = "tpot"


class TargetResult(StrEnum):
    """What a request made of a target."""

    MET = "met"
    MISSED = "missed"


class Horizon(StrEnum):
    """How far back demand is looked at."""

    SHORT = "short"
    """`controller.reactive.evidence_span_s`."""
    LONG = "long"
    """`controller.reactive.window_s`."""
