"""The section `engine`: how the router talks to every engine of the fleet."""

from enum import StrEnum

import attrs

from narwhal.config.bounds import NOT_NEGATIVE, POSITIVE
from narwhal.config.settings import about, checked
from narwhal.config.texts import VariableName
from narwhal.model import Dialect


class Connector(StrEnum):
    """What carries KV blocks from one engine to another."""

    NIXL = "nixl"


@attrs.frozen(kw_only=True, field_transformer=checked)
class EngineSettings:
    """How the router talks to every engine of the fleet."""

    dialect: Dialect = attrs.field(
        default=Dialect.VLLM, metadata=about("The HTTP API that the engines speak.")
    )
    connector: Connector = attrs.field(
        default=Connector.NIXL,
        metadata=about("What carries KV blocks from the prefill engine to the decode engine."),
    )
    engine_api_key_env: VariableName | None = attrs.field(
        default=None,
        metadata=about(
            "Environment variable that holds the bearer key of the engines; the key itself never "
            "stands in the file, nor in anything the router prints."
        ),
    )
    require_handoff: bool = attrs.field(
        default=True,
        metadata=about(
            "Whether a prefill answer without a handoff is a failure; `false` decodes such a "
            "request as one plain leg and counts it."
        ),
    )
    kv_lease_s: float = attrs.field(
        default=30.0,
        metadata=about(
            "How long an engine keeps prefilled KV blocks that nobody fetches, as set and "
            "verified on the engines; a handoff that old is never sent.",
            unit="s",
            bounds=POSITIVE,
        ),
    )
    control_connections: int = attrs.field(
        default=0,
        metadata=about(
            "Connections kept apart for health probes and recovery; `0` takes two for each "
            "engine and at least four.",
            unit="connections",
            bounds=NOT_NEGATIVE,
        ),
    )
    first_token_timeout_s: float = attrs.field(
        default=2.5,
        metadata=about(
            "From before the decode connection is opened to the first generated token, and for "
            "each leg of a functional check; keep it above the slowest handoff seen at the "
            "longest prompts.",
            unit="s",
            bounds=POSITIVE,
        ),
    )
    decode_read_timeout_s: float = attrs.field(
        default=60.0,
        metadata=about(
            "Longest silence of an engine after the first token; any bytes end it. `0` leaves "
            "the request's deadline as the only bound.",
            unit="s",
            bounds=NOT_NEGATIVE,
        ),
    )
    tokenize: bool = attrs.field(
        default=True,
        metadata=about(
            "Whether an engine is asked how many tokens a prompt has; otherwise its characters "
            "are counted."
        ),
    )
    tokenize_timeout_s: float = attrs.field(
        default=2.0,
        metadata=about(
            "Deadline for that answer; without it the characters are counted.",
            unit="s",
            bounds=POSITIVE,
        ),
    )
    chars_per_token: float = attrs.field(
        default=3.8,
        metadata=about(
            "Characters taken for one token where characters are counted; measure it for your "
            "texts, the prefill estimate grows with its square.",
            unit="characters",
            bounds=POSITIVE,
        ),
    )
    pool_timeout_s: float = attrs.field(
        default=5.0,
        metadata=about(
            "Longest wait for a free connection to an engine, for requests and probes alike; "
            "running out says nothing about the engine.",
            unit="s",
            bounds=POSITIVE,
        ),
    )
    connect_timeout_s: float = attrs.field(
        default=10.0,
        metadata=about(
            "Deadline for opening a TCP connection to an engine.", unit="s", bounds=POSITIVE
        ),
    )
    health_timeout_s: float = attrs.field(
        default=5.0,
        metadata=about(
            "Deadline of one health probe, whoever asks for it.", unit="s", bounds=POSITIVE
        ),
    )
