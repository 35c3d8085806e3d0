"""What an emulated engine is told about itself: its speed, its sizes, its manners."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs import validators

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK_TOKENS = 16
"""Tokens in a KV block; vLLM's default on GPUs (its CPU default is 128)."""

MOST_NOISE = 0.3
"""With that, and three deviations at the most, every time is still a tenth of what it is to be."""


def _coefficients(count: int) -> Callable[[object, attrs.Attribute[Any], object], None]:
    def check(_owner: object, field: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, tuple) or len(value) != count:
            raise ValueError(f"{field.name}: {count} numbers are needed, not {value!r}")
        if not all(0.0 <= number < float("inf") for number in value):
            raise ValueError(f"{field.name}: numbers must be finite and not negative: {value!r}")

    return check


@attrs.frozen(kw_only=True)
class TimeModel:
    """How long an engine takes.

    The formulas are those of the router's cost model, so that a profile fitted on an emulated
    engine can be compared with the truth. Whether prefill and decode on one engine slow each
    other is up to `chunk_tokens`.
    """

    prefill: tuple[float, float, float] = attrs.field(
        default=(2e-9, 1e-4, 0.01), validator=_coefficients(3)
    )
    """(a, b, c): a prompt of n tokens takes a n^2 + b n + c seconds, one prompt at a time."""
    decode: tuple[float, float, float] = attrs.field(
        default=(0.012, 2e-4, 2e-7), validator=_coefficients(3)
    )
    """(t0, tr, tk): with r active requests over k resident KV tokens all of them get their
    next token after t0 + tr r + tk k seconds."""
    handoff: tuple[float, float] = attrs.field(default=(0.0, 0.0), validator=_coefficients(2))
    """(base, token): a decoder that pulls n tokens joins its batch base + token n seconds later."""
    chunk_tokens: int | None = attrs.field(
        default=None, validator=validators.optional(validators.gt(0))
    )
    """Prompt tokens that share one decode step: chunked prefill, so both phases on one engine
    slow each other. None: they run side by side, and neither notices the other."""

    def prefill_seconds(self, tokens: int) -> float:
        """Seconds to prefill `tokens` prompt tokens alone."""
        a, b, c = self.prefill
        return a * tokens * tokens + b * tokens + c

    def step_seconds(self, active: int, resident: int) -> float:
        """Seconds of one decode step for `active` requests over `resident` KV tokens."""
        t0, tr, tk = self.decode
        return t0 + tr * active + tk * resident

    def chunk_seconds(self) -> float:
        """Seconds by which a decode step is longer while its engine prefills."""
        return 0.0 if self.chunk_tokens is None else self.prefill[1] * self.chunk_tokens

    def waiting_seconds(self, tokens: int, step: float) -> float:
        """Seconds by which a prefill is longer beside a batch whose steps take `step` seconds.

        Each chunk waits for the decode part of the step that it shares.
        """
        return 0.0 if self.chunk_tokens is None else tokens / self.chunk_tokens * step

    def handoff_seconds(self, tokens: int) -> float:
        """Seconds from the arrival of a decode leg until its `tokens` tokens have been pulled."""
        base, token = self.handoff
        return base + token * tokens

    def faster(self, factor: float) -> TimeModel:
        """The same model, `factor` times as fast."""
        a, b, c = self.prefill
        t0, tr, tk = self.decode
        base, token = self.handoff
        return attrs.evolve(
            self,
            prefill=(a / factor, b / factor, c / factor),
            decode=(t0 / factor, tr / factor, tk / factor),
            handoff=(base / factor, token / factor),
        )


_POSITIVE: Any = validators.gt(0)
_POSITIVE_OR_NONE: Any = validators.optional(_POSITIVE)


@attrs.frozen(kw_only=True)
class EngineSettings:
    """One emulated engine. Names follow vLLM's command line where it has the setting."""

    iid: str = "e0"
    model: str = "emulated"
    time: TimeModel = attrs.field(factory=TimeModel)
    noise: float = attrs.field(
        default=0.0, validator=[validators.ge(0.0), validators.le(MOST_NOISE)]
    )
    """Standard deviation of each prefill and step around its time, as a fraction of it."""
    max_model_len: int = attrs.field(default=32_768, validator=_POSITIVE)
    """Prompt and output tokens a request may have together."""
    max_num_seqs: int = attrs.field(default=256, validator=_POSITIVE)
    """Sequences that may run (prefill or decode) at once; the others wait, first come first."""
    max_num_queued_reqs: int | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    """Waiting and running sequences at which new requests are answered 503; None: no limit."""
    block_size: int = attrs.field(default=BLOCK_TOKENS, validator=_POSITIVE)
    kv_capacity_tokens: int | None = attrs.field(default=None, validator=_POSITIVE_OR_NONE)
    """Tokens of KV cache, handed-off blocks included; None: as many as it takes."""
    lease_s: float = attrs.field(default=30.0, validator=_POSITIVE)
    """Seconds a prefilled KV cache waits for its decoder (vLLM's `kv_lease_duration`)."""
    answer_tokens: int = attrs.field(default=64, validator=_POSITIVE)
    """Length of an answer whose request sets no limit, the end-of-text token included."""
    repeatable: bool = True
    """Whether a prompt always gets the same answer, as at temperature 0; without, every leg
    answers in words of its own, so that one can tell whose words they are."""
    length_in_prompt: bool = False
    """Whether the first of a prompt's token ids is the length of its answer, where the client
    allows as much. For prompts that have no text to say it in."""
    stream_every: int = attrs.field(default=1, validator=_POSITIVE)
    """Streams are written every so many decode steps of the engine, and at their first and last
    tokens: less work for simulations, in which nobody looks at the others. Times of first and
    last tokens are the same with any value."""
    connector: bool = True
    """Whether the engine hands KV over; without, `kv_transfer_params` are ignored."""
    api_key: str | None = attrs.field(default=None, repr=False)
    """If set, every route asks for it as a bearer token (`/emulator/...` does not)."""
    keep_alive_s: float = attrs.field(default=5.0, validator=_POSITIVE)
    """Seconds after which an idle connection is closed; uvicorn's default, so vLLM's."""
    version: str = "0.32.0"

    def __attrs_post_init__(self) -> None:
        """A request of any allowed length must fit, or it would wait for ever."""
        if self.kv_capacity_tokens is not None and self.max_model_len > self.kv_capacity_tokens:
            raise ValueError(
                f"max_model_len ({self.max_model_len}) is more than kv_capacity_tokens "
                f"({self.kv_capacity_tokens}): lower the first or raise the second"
            )
