"""What was measured: one value for each measurement, and all of those of one engine."""

import attrs

from narwhal.config.bounds import NOT_NEGATIVE, POSITIVE, at_least, between
from narwhal.config.settings import about, checked
from narwhal.config.texts import EngineId, Name
from narwhal.profiles.digest import Digest

# Nothing that an engine does is over in a nanosecond or goes on for days: such a number is a
# mistake of units. And between these bounds nothing overflows in the fits.
_SECONDS = between(1e-9, 1e6)


@attrs.frozen(kw_only=True, field_transformer=checked)
class PrefillSample:
    """A prefill that had the engine to itself."""

    tokens: int = attrs.field(metadata=about("Length of the prompt.", bounds=at_least(1)))
    seconds: float = attrs.field(metadata=about("How long it took.", unit="s", bounds=_SECONDS))


@attrs.frozen(kw_only=True, field_transformer=checked)
class DecodeSample:
    """The interval between two tokens while the engine's batch stayed as it was."""

    requests: int = attrs.field(metadata=about("Active requests.", bounds=at_least(1)))
    kv_tokens: int = attrs.field(
        metadata=about("Resident KV tokens of all of them.", bounds=NOT_NEGATIVE)
    )
    interval_s: float = attrs.field(
        metadata=about("Time between two tokens.", unit="s", bounds=_SECONDS)
    )


@attrs.frozen(kw_only=True, field_transformer=checked)
class HandoffSample:
    """A handoff between two engines with nothing else to do."""

    tokens: int = attrs.field(metadata=about("Length of the prompt.", bounds=at_least(1)))
    seconds: float = attrs.field(metadata=about("How long it took.", unit="s", bounds=_SECONDS))


@attrs.frozen(kw_only=True, field_transformer=checked)
class TextSample:
    """A prompt, counted in characters and by an engine in tokens."""

    characters: int = attrs.field(metadata=about("Its characters.", bounds=at_least(1)))
    tokens: int = attrs.field(metadata=about("Its tokens.", bounds=at_least(1)))


@attrs.frozen(kw_only=True, field_transformer=checked)
class Measured:
    """The engine that samples are of."""

    iid: EngineId = attrs.field(metadata=about("The engine's name in the fleet file."))
    version: Name = attrs.field(metadata=about("The engine's answer to `/version`."))
    process_start_s: float = attrs.field(
        metadata=about("Start of its process, Unix time.", unit="s", bounds=POSITIVE)
    )
    generation_digest: Digest | None = attrs.field(
        default=None, metadata=about("What the samples are bound to, as in a profile store.")
    )
    kv_capacity_tokens: int | None = attrs.field(
        default=None, metadata=about("KV tokens that its memory holds.", bounds=at_least(1))
    )


@attrs.frozen(kw_only=True)
class EngineSamples:
    """Everything that was measured on one engine: enough to fit its profile again."""

    engine: Measured
    prefill: tuple[PrefillSample, ...] = ()
    decode: tuple[DecodeSample, ...] = ()
    handoff: tuple[HandoffSample, ...] = ()
    """Handoffs to this engine; empty if none was measured."""
    text: tuple[TextSample, ...] = ()
    """Prompts that it counted; empty if none was counted."""
