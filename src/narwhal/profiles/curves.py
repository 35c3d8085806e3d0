"""The three formulas of the cost model, each with where it was measured and how well it fits.

All coefficients are finite and not negative. So no time is ever negative or no number, and more
work never takes less time: the sums and products below are monotone in floating point too. A
time that is too large for a float is infinite.
"""

import attrs

from narwhal.config.bounds import NOT_NEGATIVE, POSITIVE, at_least
from narwhal.config.settings import about, checked
from narwhal.model import ConfigError


@attrs.frozen(field_transformer=checked)
class Range:
    """Where something was measured: from `low` to `high`, both included."""

    low: int = attrs.field(metadata=about("Least value.", bounds=NOT_NEGATIVE))
    high: int = attrs.field(metadata=about("Greatest value.", bounds=at_least(1)))

    def __attrs_post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigError(
                [f"Range.low must be at most Range.high ({self.high}), not {self.low}"]
            )

    def reaches(self, value: float) -> bool:
        """Whether `value` is no further than what was measured.

        Below `low` counts as reached. Less work costs no more, so what was measured at `low`
        bounds it; beyond `high` nothing does.
        """
        return value <= self.high


@attrs.frozen(kw_only=True, field_transformer=checked)
class PrefillCurve:
    """A prefill of `n` tokens, alone on the engine, takes `a n^2 + b n + c` seconds.

    Each token goes through all the weights (`b`) and attends to every token before it, which makes
    a number of pairs that grows with the square (`a`); `c` is what any prefill takes.
    """

    a: float = attrs.field(
        metadata=about("Each pair of tokens.", unit="s/token^2", bounds=NOT_NEGATIVE)
    )
    b: float = attrs.field(metadata=about("Each token.", unit="s/token", bounds=NOT_NEGATIVE))
    c: float = attrs.field(metadata=about("Each prefill.", unit="s", bounds=NOT_NEGATIVE))
    tokens: Range | None = None
    """Prompt lengths that were measured; `None` if that is not known."""
    fit_mape: float | None = attrs.field(
        default=None,
        metadata=about("Mean error on the samples of the fit.", bounds=NOT_NEGATIVE),
    )
    cv_mape: float | None = attrs.field(
        default=None,
        metadata=about("Mean error on samples left out of the fit.", bounds=NOT_NEGATIVE),
    )

    def seconds(self, tokens: int) -> float:
        """Seconds to prefill `tokens` tokens, 0 or more of them."""
        return self.a * tokens * tokens + self.b * tokens + self.c


@attrs.frozen(kw_only=True, field_transformer=checked)
class DecodeCurve:
    """The interval between two tokens of a stream is `t0 + tr r + tk k` seconds.

    `r` counts the active requests of the engine and `k` their resident KV tokens. A step reads the
    weights once (`t0`) and the whole of the resident cache (`tk`), and does each request's own
    share of the work (`tr`).
    """

    t0: float = attrs.field(metadata=about("Each step.", unit="s", bounds=NOT_NEGATIVE))
    tr: float = attrs.field(
        metadata=about("Each active request.", unit="s/request", bounds=NOT_NEGATIVE)
    )
    tk: float = attrs.field(
        metadata=about("Each resident KV token.", unit="s/token", bounds=POSITIVE)
    )
    requests: Range | None = None
    """Numbers of active requests that were measured; `None` if that is not known."""
    kv_tokens: Range | None = None
    """Numbers of resident KV tokens that were measured; `None` if that is not known."""
    fit_mape: float | None = attrs.field(
        default=None,
        metadata=about("Mean error on the samples of the fit.", bounds=NOT_NEGATIVE),
    )
    cv_mape: float | None = attrs.field(
        default=None,
        metadata=about("Mean error on samples left out of the fit.", bounds=NOT_NEGATIVE),
    )

    def interval(self, requests: int, kv_tokens: int) -> float:
        """Seconds between two tokens with `requests` active and `kv_tokens` resident."""
        return self.t0 + self.tr * requests + self.tk * kv_tokens


@attrs.frozen(kw_only=True, field_transformer=checked)
class HandoffCurve:
    """A handoff of `n` tokens takes `base_s + token_s n` seconds.

    It is what lies between the prefill's answer and the decoder's first step: an exchange between
    two engines, and a copy of the cache.
    """

    base_s: float = attrs.field(metadata=about("Each handoff.", unit="s", bounds=NOT_NEGATIVE))
    token_s: float = attrs.field(
        metadata=about("Each token pulled.", unit="s/token", bounds=NOT_NEGATIVE)
    )

    def seconds(self, tokens: int) -> float:
        """Seconds to hand over the KV cache of `tokens` tokens."""
        return self.base_s + self.token_s * tokens
