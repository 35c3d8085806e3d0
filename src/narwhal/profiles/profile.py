"""How long one engine takes, and how many requests it can hold within a target."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from enum import StrEnum

import attrs

from narwhal.config.bounds import at_least
from narwhal.config.settings import about, checked
from narwhal.profiles.curves import DecodeCurve, HandoffCurve, PrefillCurve, Range


class SeatBound(StrEnum):
    """What keeps one more request off an engine."""

    TPOT = "tpot"
    """The interval would be longer than the target."""
    KV_CAPACITY = "kv_capacity"
    """Its cache would not fit into the engine's memory."""
    MEASURED_KV_TOKENS = "measured_kv_tokens"
    """So many resident tokens were never measured."""
    MEASURED_REQUESTS = "measured_requests"
    """So many active requests were never measured."""
    UNMEASURED = "unmeasured"
    """The profile does not say where it was measured."""


@attrs.frozen
class Seats:
    """How many requests fit, and what the next one would break."""

    count: int
    bound: SeatBound


@attrs.frozen(kw_only=True, field_transformer=checked)
class Profile:
    """The cost model of one engine, and how far it reaches.

    Every price is a number of seconds, 0 or more, and grows with the work. It is given inside the
    measured domain and beyond it alike: whether it may be relied on is for `fits_prefill` and
    `fits_decode` to say.
    """

    prefill: PrefillCurve
    decode: DecodeCurve
    handoff: HandoffCurve | None = None
    """`None` if it was not measured."""
    kv_capacity_tokens: int | None = attrs.field(
        default=None,
        metadata=about("KV tokens that the engine's memory holds.", bounds=at_least(1)),
    )
    """`None` if that is not known."""

    def prefill_seconds(self, tokens: int) -> float:
        """Seconds of a prefill of `tokens` tokens that has the engine to itself."""
        return self.prefill.seconds(tokens)

    def decode_interval(self, requests: int, kv_tokens: int) -> float:
        """Seconds between two tokens of a stream, `requests` active over `kv_tokens` resident."""
        return self.decode.interval(requests, kv_tokens)

    def idle_interval(self) -> float:
        """The zero-contention interval, in seconds: one request, and no resident tokens.

        It is the floor that decode load is counted from. There is no interval without a request,
        so that one is in it. Tokens are not: they are the load, its own included, and no interval
        that an engine can show is then below the floor.
        """
        return self.decode.interval(1, 0)

    def handoff_seconds(self, tokens: int) -> float:
        """Seconds between a prefill's answer and the decoder's first step; 0 if not measured."""
        return 0.0 if self.handoff is None else self.handoff.seconds(tokens)

    def fits_prefill(self, tokens: int) -> bool:
        """Whether a prompt of `tokens` tokens is no longer than those measured.

        False for every length if the profile does not say what was measured.
        """
        measured = self.prefill.tokens
        return measured is not None and measured.reaches(tokens)

    def fits_decode(self, requests: int, kv_tokens: int) -> bool:
        """Whether that many requests and resident tokens are no more than were measured.

        False for every batch if the profile does not say what was measured.
        """
        decode = self.decode
        return (
            decode.requests is not None
            and decode.kv_tokens is not None
            and decode.requests.reaches(requests)
            and decode.kv_tokens.reaches(kv_tokens)
        )

    def fits_memory(self, kv_tokens: int) -> bool:
        """Whether `kv_tokens` fit into the engine's memory; true if its size is not known."""
        return self.kv_capacity_tokens is None or kv_tokens <= self.kv_capacity_tokens

    def decode_seats(self, context_tokens: int, tpot_s: float) -> Seats:
        """The most requests of `context_tokens` tokens each that decode within `tpot_s` seconds.

        `count` requests meet the target, fit the memory and fit the measured domain; one more
        breaks what `bound` names. If it breaks several, memory is named before the domain, and
        that before the target. A request holds a token at least. A profile that does not say
        where it was measured offers one seat at most.
        """
        context = max(1, context_tokens)
        most, bound = self._room(context)
        # The interval grows with the requests, in floating point too: bisection is exact.
        count = bisect_right(
            range(1, most + 1),
            tpot_s,
            key=lambda requests: self.decode.interval(requests, requests * context),
        )
        return Seats(count, SeatBound.TPOT if count < most else bound)

    def _room(self, context_tokens: int) -> tuple[int, SeatBound]:
        """Seats as far as memory and measurements go, whatever the time."""
        requests, kv_tokens = self.decode.requests, self.decode.kv_tokens
        rooms = []
        if self.kv_capacity_tokens is not None:
            rooms.append((self.kv_capacity_tokens // context_tokens, SeatBound.KV_CAPACITY))
        if requests is None or kv_tokens is None:
            rooms.append((1, SeatBound.UNMEASURED))
        else:
            rooms.append((kv_tokens.high // context_tokens, SeatBound.MEASURED_KV_TOKENS))
            rooms.append((requests.high, SeatBound.MEASURED_REQUESTS))
        return min(rooms, key=lambda room: room[0])


def mean_profile(profiles: Sequence[Profile]) -> Profile:
    """The profile that demand is priced with: every coefficient is the mean over `profiles`.

    So is every price, as prices are linear in the coefficients. Everything else is what holds of
    all engines: the domain is where each of them was measured, the memory the smallest that is
    known, an error the largest, and unknown as soon as one is. The handoff is unknown likewise.
    Raises `ValueError` if there is no profile.
    """
    if not profiles:
        raise ValueError("the mean of no profiles")
    prefills = [profile.prefill for profile in profiles]
    decodes = [profile.decode for profile in profiles]
    capacities = [profile.kv_capacity_tokens for profile in profiles]
    return Profile(
        prefill=PrefillCurve(
            a=_mean([each.a for each in prefills]),
            b=_mean([each.b for each in prefills]),
            c=_mean([each.c for each in prefills]),
            tokens=_common([each.tokens for each in prefills]),
            fit_mape=_worst([each.fit_mape for each in prefills]),
            cv_mape=_worst([each.cv_mape for each in prefills]),
        ),
        decode=DecodeCurve(
            t0=_mean([each.t0 for each in decodes]),
            tr=_mean([each.tr for each in decodes]),
            tk=_mean([each.tk for each in decodes]),
            requests=_common([each.requests for each in decodes]),
            kv_tokens=_common([each.kv_tokens for each in decodes]),
            fit_mape=_worst([each.fit_mape for each in decodes]),
            cv_mape=_worst([each.cv_mape for each in decodes]),
        ),
        handoff=_mean_handoff([profile.handoff for profile in profiles]),
        kv_capacity_tokens=min((each for each in capacities if each is not None), default=None),
    )


def _mean_handoff(handoffs: Sequence[HandoffCurve | None]) -> HandoffCurve | None:
    known = [each for each in handoffs if each is not None]
    if len(known) < len(handoffs):
        return None
    return HandoffCurve(
        base_s=_mean([each.base_s for each in known]),
        token_s=_mean([each.token_s for each in known]),
    )


def _mean(values: Sequence[float]) -> float:
    """The mean, which rounding takes neither below the least nor above the greatest value."""
    least, greatest = min(values), max(values)
    if not greatest:
        return 0.0
    mean = greatest * math.fsum(value / greatest / len(values) for value in values)
    return min(max(mean, least), greatest)


def _common(ranges: Sequence[Range | None]) -> Range | None:
    """What lies in all of them; `None` if nothing does, or one is not known."""
    known = [each for each in ranges if each is not None]
    if len(known) < len(ranges):
        return None
    low, high = max(each.low for each in known), min(each.high for each in known)
    return Range(low, high) if low <= high else None


def _worst(errors: Sequence[float | None]) -> float | None:
    known = [each for each in errors if each is not None]
    return max(known) if len(known) == len(errors) else None
