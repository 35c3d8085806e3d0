"""The rows of a profile store: one engine's profile under the names of the file format."""

from collections.abc import Mapping
from typing import Any

import attrs

from narwhal.config.bounds import NOT_NEGATIVE, POSITIVE, at_least
from narwhal.config.faults import Fault, Faults
from narwhal.config.settings import about, checked
from narwhal.config.texts import EngineId
from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve, Range
from narwhal.profiles.digest import Digest, is_ours
from narwhal.profiles.profile import Profile
from narwhal.profiles.reading import read_flat


@attrs.frozen(kw_only=True)
class ProfileRow:
    """The profile of one engine, and what it is bound to."""

    iid: str
    profile: Profile
    generation_digest: str | None = None

    @property
    def bound(self) -> bool:
        """Whether the row says, as `generation_digest` does, what it was measured on.

        A row without a digest, or with one of another program, is unbound: nothing tells whether
        the engine is still the one that was measured.
        """
        return is_ours(self.generation_digest)


def _error(text: str) -> dict[str, object]:
    return dict(about(text, unit="fraction", bounds=NOT_NEGATIVE))


@attrs.frozen(kw_only=True, field_transformer=checked)
class Fields:
    """The fields of a row, in the order in which they are written.

    What has the default `None` may be absent or null.
    """

    iid: EngineId = attrs.field(metadata=about("The engine's name in the fleet file."))
    generation_digest: Digest | None = attrs.field(
        default=None, metadata=about("What the row is bound to.")
    )
    ttft_a: float = attrs.field(
        metadata=about("Prefill: for each token squared.", unit="s", bounds=NOT_NEGATIVE)
    )
    ttft_b: float = attrs.field(
        metadata=about("Prefill: for each token.", unit="s", bounds=NOT_NEGATIVE)
    )
    ttft_c: float = attrs.field(
        metadata=about("Prefill: for each prompt.", unit="s", bounds=NOT_NEGATIVE)
    )
    prefill_min_tokens: int | None = attrs.field(
        default=None, metadata=about("Shortest prompt that was measured.", bounds=at_least(1))
    )
    prefill_max_tokens: int | None = attrs.field(
        default=None, metadata=about("Longest prompt that was measured.", bounds=at_least(1))
    )
    prefill_fit_mape: float | None = attrs.field(
        default=None, metadata=_error("Mean error of prefill on the points of the fit.")
    )
    prefill_cv_mape: float | None = attrs.field(
        default=None, metadata=_error("Mean error of prefill on points left out of the fit.")
    )
    tpot_intercept: float = attrs.field(
        metadata=about("Decode: for each step.", unit="s", bounds=NOT_NEGATIVE)
    )
    tpot_request_slope: float | None = attrs.field(
        default=None,
        metadata=about("Decode: for each active request.", unit="s", bounds=NOT_NEGATIVE),
    )
    tpot_slope: float = attrs.field(
        metadata=about("Decode: for each resident KV token.", unit="s", bounds=POSITIVE)
    )
    kv_capacity_tokens: int | None = attrs.field(
        default=None, metadata=about("KV tokens that the memory holds.", bounds=at_least(1))
    )
    decode_min_requests: int | None = attrs.field(
        default=None, metadata=about("Fewest active requests measured.", bounds=at_least(1))
    )
    decode_max_requests: int | None = attrs.field(
        default=None, metadata=about("Most active requests measured.", bounds=at_least(1))
    )
    decode_min_kv_tokens: int | None = attrs.field(
        default=None, metadata=about("Fewest resident KV tokens measured.", bounds=NOT_NEGATIVE)
    )
    decode_max_kv_tokens: int | None = attrs.field(
        default=None, metadata=about("Most resident KV tokens measured.", bounds=at_least(1))
    )
    decode_fit_mape: float | None = attrs.field(
        default=None, metadata=_error("Mean error of decode on the points of the fit.")
    )
    decode_cv_mape: float | None = attrs.field(
        default=None, metadata=_error("Mean error of decode on points left out of the fit.")
    )
    handoff_base_s: float | None = attrs.field(
        default=None, metadata=about("Handoff: for each.", unit="s", bounds=NOT_NEGATIVE)
    )
    handoff_token_s: float | None = attrs.field(
        default=None, metadata=about("Handoff: for each token.", unit="s", bounds=NOT_NEGATIVE)
    )


_RANGES = (
    ("prefill_min_tokens", "prefill_max_tokens"),
    ("decode_min_requests", "decode_max_requests"),
    ("decode_min_kv_tokens", "decode_max_kv_tokens"),
)
_TOGETHER = (*_RANGES, ("handoff_base_s", "handoff_token_s"))


def read_row(value: object) -> ProfileRow:
    """Read one row. Raises `Faults` with every mistake in it."""
    values, faults = read_flat(value, Fields, hint="what is not measured belongs into meta")
    faults += _rule_faults(values)
    if faults:
        raise Faults(faults)
    fields = Fields(**values)
    return ProfileRow(
        iid=fields.iid, profile=_profile(fields), generation_digest=fields.generation_digest
    )


def row_document(row: ProfileRow) -> dict[str, object]:
    """The object that `read_row` makes an equal row of; what is not known is left out."""
    document = attrs.asdict(_fields(row))
    return {
        name: value + 0.0 if isinstance(value, float) else value
        for name, value in document.items()
        if value is not None
    }


def _rule_faults(values: Mapping[str, Any]) -> list[Fault]:
    """What breaks a rule between two fields, of those that could be read."""
    faults = []
    for one, other in _TOGETHER:
        if one not in values or other not in values:
            continue
        given, counterpart = values[one], values[other]
        if (given is None) != (counterpart is None):
            missing, there = (one, other) if given is None else (other, one)
            text = f"is missing beside {there}: give both, or neither if it was not measured"
            faults.append(Fault(missing, text))
        elif given is not None and (one, other) in _RANGES and given > counterpart:
            text = f"must be at most {other} ({counterpart}), not {given}"
            faults.append(Fault(one, f"{text}: measure the engine again"))
    return faults


def _profile(fields: Fields) -> Profile:
    return Profile(
        prefill=PrefillCurve(
            a=fields.ttft_a,
            b=fields.ttft_b,
            c=fields.ttft_c,
            tokens=_range(fields.prefill_min_tokens, fields.prefill_max_tokens),
            fit_mape=fields.prefill_fit_mape,
            cv_mape=fields.prefill_cv_mape,
        ),
        decode=DecodeCurve(
            t0=fields.tpot_intercept,
            tr=fields.tpot_request_slope or 0.0,
            tk=fields.tpot_slope,
            requests=_range(fields.decode_min_requests, fields.decode_max_requests),
            kv_tokens=_range(fields.decode_min_kv_tokens, fields.decode_max_kv_tokens),
            fit_mape=fields.decode_fit_mape,
            cv_mape=fields.decode_cv_mape,
        ),
        handoff=_handoff(fields.handoff_base_s, fields.handoff_token_s),
        kv_capacity_tokens=fields.kv_capacity_tokens,
    )


def _fields(row: ProfileRow) -> Fields:
    prefill, decode, handoff = row.profile.prefill, row.profile.decode, row.profile.handoff
    shortest, longest = _ends(prefill.tokens)
    fewest, most = _ends(decode.requests)
    least, greatest = _ends(decode.kv_tokens)
    return Fields(
        iid=row.iid,
        generation_digest=row.generation_digest,
        ttft_a=prefill.a,
        ttft_b=prefill.b,
        ttft_c=prefill.c,
        prefill_min_tokens=shortest,
        prefill_max_tokens=longest,
        prefill_fit_mape=prefill.fit_mape,
        prefill_cv_mape=prefill.cv_mape,
        tpot_intercept=decode.t0,
        tpot_request_slope=decode.tr,
        tpot_slope=decode.tk,
        kv_capacity_tokens=row.profile.kv_capacity_tokens,
        decode_min_requests=fewest,
        decode_max_requests=most,
        decode_min_kv_tokens=least,
        decode_max_kv_tokens=greatest,
        decode_fit_mape=decode.fit_mape,
        decode_cv_mape=decode.cv_mape,
        handoff_base_s=None if handoff is None else handoff.base_s,
        handoff_token_s=None if handoff is None else handoff.token_s,
    )


def _range(low: int | None, high: int | None) -> Range | None:
    return None if low is None or high is None else Range(low, high)


def _ends(measured: Range | None) -> tuple[int | None, int | None]:
    return (None, None) if measured is None else (measured.low, measured.high)


def _handoff(base_s: float | None, token_s: float | None) -> HandoffCurve | None:
    if base_s is None or token_s is None:
        return None
    return HandoffCurve(base_s=base_s, token_s=token_s)
