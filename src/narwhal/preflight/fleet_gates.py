"""Gates that need no engine: the fleet file, the profile store, and the targets. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from narwhal.config.bounds import number
from narwhal.model import Role
from narwhal.preflight.gates import FLEET, About, Gate
from narwhal.preflight.pairs import engines_for
from narwhal.profiles import check_limits, generation_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from narwhal.config import FleetConfig
    from narwhal.preflight.gates import Finding
    from narwhal.preflight.view import View
    from narwhal.profiles import Profile, ProfileRow, ProfileStore

# Contexts that a decode engine is asked for seats with: a short chat, and a long one.
_CONTEXTS = (1024, 4096)
# That the longest prompts miss the target is a choice; that most of the context does, an error.
_SHORT = 0.25


def config_findings(config: FleetConfig) -> Iterator[Finding]:
    """Whether the settings, each of which is sound, go together."""
    fleet = About(Gate.CONFIG, FLEET)
    roles = Counter(spec.role for spec in config.engines)
    counted = ", ".join(f"{roles[role]} {role.value}" for role in Role)
    yield fleet.passed(f"{len(config.engines)} engines ({counted}), model {config.model}")
    yield _handoff_cap(config, fleet)
    first, lease = config.engine.first_token_timeout_s, config.engine.kv_lease_s
    if first >= lease:
        yield fleet.warned(
            f"engine.first_token_timeout_s {number(first)} s, engine.kv_lease_s {number(lease)} s",
            "a first token well before the lease of its KV cache ends",
            "lower engine.first_token_timeout_s, or give the engines a longer lease",
        )


def _handoff_cap(config: FleetConfig, fleet: About) -> Finding:
    cap, lease = config.serving.handoff_timeout_s, config.engine.kv_lease_s
    expected = "a handoff is sent before its lease ends"
    if cap == 0:
        return fleet.passed(
            f"serving.handoff_timeout_s is 0: engine.kv_lease_s ({number(lease)} s) is the cap",
            expected,
        )
    seen = f"serving.handoff_timeout_s {number(cap)} s, engine.kv_lease_s {number(lease)} s"
    if cap < lease:
        return fleet.passed(seen, expected)
    return fleet.warned(
        seen, expected, "set serving.handoff_timeout_s below the lease; until then the lease holds"
    )


def profile_findings(
    config: FleetConfig,
    store: ProfileStore | tuple[str, ...] | None,
    views: Mapping[str, View],
) -> Iterator[Finding]:
    """Whether every engine has a profile that may be used. `store`: what is wrong with it, or none.

    An engine that did not say its version is judged by the rest.
    """
    fleet = About(Gate.PROFILE, FLEET)
    path, needed = config.profiles.path, config.serving.admission != "open"
    measure = "narwhal-trio profile --fleet FILE measures the engines"
    if store is None and not needed:
        yield fleet.skipped(
            f'there is no {path}, and serving.admission "open" does without',
            f"role control and predictive admission need profiles: {measure}",
        )
    elif store is None:
        yield fleet.failed(f"there is no {path}", "a profile of every engine", measure)
    elif isinstance(store, tuple):
        advice = f"mend it, or move it away: {measure}"
        yield from (fleet.failed(line, "a sound profile store", advice) for line in store)
    else:
        for view in views.values():
            yield _profile(config, store, view)


def _profile(config: FleetConfig, store: ProfileStore, view: View) -> Finding:
    about, path = view.at(Gate.PROFILE), config.profiles.path
    again = f"narwhal-trio profile --fleet FILE --only {view.iid} --overwrite"
    row = store.row(view.iid)
    if row is None:
        return about.failed(f"{path} has no row for it", "a profile of every engine", again)
    broken = [each for each in check_limits(store, config.profiles) if each.iid == view.iid]
    if broken:
        return about.failed(
            "; ".join(each.line(path) for each in broken), "a fit within its limits", again
        )
    if (stale := _stale(config, row, view)) is not None:
        return about.failed(stale, "a profile of the engine as it runs now", again)
    expected = "bound to this version, model and contract"
    if not row.bound:
        return about.warned("its row is bound to nothing", expected, again)
    short = _too_short(row.profile, view.context_tokens)
    if short is not None:
        return about.warned(short, "measured over the engine's whole context", again)
    return about.passed(f"{_domain(row.profile)}", expected)


def _stale(config: FleetConfig, row: ProfileRow, view: View) -> str | None:
    if not row.bound or view.version is None:
        return None
    now = generation_digest(view.version, config.model, config.engine_contract)
    if row.generation_digest == now:
        return None
    return (
        f"it was measured on another version, model or contract than version {view.version}, "
        f"model {config.model} and the fleet file's engine_contract"
    )


def _too_short(profile: Profile, context_tokens: int | None) -> str | None:
    measured = profile.prefill.tokens
    if measured is None or profile.decode.requests is None or profile.decode.kv_tokens is None:
        return "it does not say where it was measured"
    # A prompt leaves room for one token at least, and a profiler for a few.
    if context_tokens is not None and measured.high < 0.9 * context_tokens:
        return (
            f"prompts were measured up to {measured.high} tokens, and the engine takes "
            f"{context_tokens}: longer ones are priced by extrapolation"
        )
    return None


def _domain(profile: Profile) -> str:
    prefill, requests = profile.prefill.tokens, profile.decode.requests
    assert prefill is not None, "looked at before"  # noqa: S101 - invariant
    assert requests is not None, "looked at before"  # noqa: S101 - invariant
    return (
        f"prompts of {prefill.low} to {prefill.high} tokens, {requests.low} to {requests.high} "
        "requests at once"
    )


def slo_findings(
    config: FleetConfig, profiles: Mapping[str, Profile], views: Mapping[str, View]
) -> Iterator[Finding]:
    """Whether engines as measured can meet the targets at all."""
    if not profiles:
        yield About(Gate.SLO, FLEET).skipped("there are no profiles to reckon with")
        return
    prefill, decode = (engines_for(config, role) or list(profiles) for role in Role)
    for view in views.values():
        about, profile = view.at(Gate.SLO), profiles.get(view.iid)
        if profile is not None and view.iid in prefill:
            yield _ttft(config, profile, about, view.context_tokens)
        if profile is not None and view.iid in decode:
            yield _tpot(config, profile, about)


def _ttft(
    config: FleetConfig, profile: Profile, about: About, context_tokens: int | None
) -> Finding:
    target, measured = config.slo.ttft_s, profile.prefill.tokens
    known = [each for each in (context_tokens, measured.high if measured else None) if each]
    longest = min(known, default=_CONTEXTS[-1])
    least, most = profile.prefill_seconds(1), profile.prefill_seconds(longest)
    figures = {"shortest_ttft_s": least, "longest_ttft_s": most}
    seen = f"a prompt of {longest} tokens takes {most:.3g} s, the shortest {least:.3g} s"
    expected = f"a first token within slo.ttft_s ({number(target)} s)"
    if least > target:
        return about.failed(seen, expected, "raise slo.ttft_s, or use faster engines", **figures)
    if most <= target:
        return about.passed(seen, expected, **figures)
    fits = _longest_within(profile, longest, target)
    figures["fitting_tokens"] = fits
    seen += f"; up to {fits} tokens meet the target, and longer ones are refused under predictive"
    if fits < _SHORT * longest:
        return about.warned(seen, expected, "raise slo.ttft_s if you expect longer ones", **figures)
    return about.passed(seen, expected, **figures)


def _longest_within(profile: Profile, longest: int, seconds: float) -> int:
    """The longest prompt that takes no longer; prices grow with length, so halving finds it."""
    low, high = 1, longest
    while low < high:
        middle = (low + high + 1) // 2
        if profile.prefill_seconds(middle) <= seconds:
            low = middle
        else:
            high = middle - 1
    return low


def _tpot(config: FleetConfig, profile: Profile, about: About) -> Finding:
    target, floor = config.slo.tpot_s, profile.idle_interval()
    seats = [(context, profile.decode_seats(context, target)) for context in _CONTEXTS]
    listed = ", ".join(f"{each.count} of {context} tokens" for context, each in seats)
    seen = f"{floor:.3g} s a token alone; requests within the target: {listed}"
    expected = f"an interval within slo.tpot_s ({number(target)} s)"
    figures = {"idle_interval_s": floor} | {
        f"seats_{context}": float(each.count) for context, each in seats
    }
    if floor > target:
        return about.failed(seen, expected, "raise slo.tpot_s, or use faster engines", **figures)
    if not seats[0][1].count:
        return about.warned(
            seen, expected, "not one short chat fits: raise slo.tpot_s or measure again", **figures
        )
    return about.passed(seen, expected, **figures)
