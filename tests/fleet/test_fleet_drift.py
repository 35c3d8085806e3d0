"""Slow engines: examples, properties, and a model that keeps every window and counts afresh."""

from __future__ import annotations

import itertools
import math
import random
from statistics import median

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from narwhal.config.recovery import Health
from narwhal.fleet import Drift, Finding, FindingKind
from narwhal.fleet.drift_record import BASELINE_WINDOWS, MOST_RESIDUALS

PROBATION, EVICT, RECOVERED = FindingKind.PROBATION, FindingKind.EVICT, FindingKind.RECOVERED
HEALTH = Health()  # windows of 30 s; bands 2 and 1.5; 3 residuals; rows of 3, 5 and 3; 1.5 s
LOW, SICK = 1.0, 5.0

Window = dict[str, list[float]]
"""The residuals of one window, by engine."""


def alike(**levels: float | None) -> Window:
    """A window in which each engine shows its level, just as often as it takes to be judged."""
    return {iid: [level] * 3 for iid, level in levels.items() if level is not None}


def play(
    drift: Drift, windows: list[Window], *, health: Health = HEALTH, first: int = 0, unit: float = 1
) -> list[tuple[Finding, ...]]:
    """What is found after each window. `unit` is the unit of time, in seconds."""
    found = []
    for index, window in enumerate(windows, first):
        passes = max(map(len, window.values()), default=0)
        for number in range(passes):
            now = (index + number / passes) * health.window_s
            for iid, residuals in window.items():
                if number < len(residuals):
                    drift.observe(iid, residuals[number] * 0.03125 * unit, 0.03125 * unit, now)
            assert number == 0 or not drift.judge(now), "a window that goes on"
        found.append(drift.judge((index + 1) * health.window_s))
    return found


def kinds(found: list[tuple[Finding, ...]], iid: str = "a") -> list[str]:
    """The findings on one engine after each window, in short."""
    return ["+".join(each.kind for each in now if each.iid == iid) for now in found]


def drive(
    a: list[float | None], b: list[float | None], health: Health = HEALTH, **others: float
) -> list[str]:
    windows = [alike(a=x, b=y, **others) for x, y in zip(a, b, strict=True)]
    return kinds(play(Drift(["a", "b", *others], health), windows, health=health))


STAY = ["", "", "probation", "", "evict", "evict"]


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        pytest.param([SICK] * 6, [LOW] * 6, STAY, id="sick, and asked for again"),
        pytest.param([2.0] * 6, [LOW] * 6, [""] * 6, id="at the band, not over it"),
        pytest.param([2.1] * 6, [LOW] * 6, STAY, id="just over it"),
        pytest.param([SICK] * 6, [SICK] * 6, [""] * 6, id="all are slow together"),
        pytest.param([6.0] * 6, [4.0] * 6, [""] * 6, id="at the others' band, not over it"),
        pytest.param([6.1] * 6, [4.0] * 6, STAY, id="slow, and slower than the slow"),
        pytest.param(
            [SICK, SICK, LOW, SICK, SICK, SICK],
            [LOW] * 6,
            ["", "", "", "", "", "probation"],
            id="a good window breaks the row",
        ),
        pytest.param(
            [SICK, None, SICK, None, None, SICK],
            [LOW] * 6,
            ["", "", "", "", "", "probation"],
            id="one without residuals breaks none",
        ),
        pytest.param(
            [SICK, SICK, SICK, LOW, None, LOW, LOW, LOW],
            [LOW] * 8,
            ["", "", "probation", "", "", "", "recovered", ""],
            id="recovered, with a silence in between",
        ),
        pytest.param(
            [SICK, SICK, SICK, LOW, LOW, SICK, SICK, LOW, LOW, LOW],
            [LOW] * 10,
            ["", "", "probation", "", "", "", "", "", "", "recovered"],
            id="two good ones are too few",
        ),
        pytest.param(
            [SICK] * 3 + [LOW] + [SICK] * 5,
            [LOW] * 9,
            ["", "", "probation", "", "", "", "", "", "evict"],
            id="the row to an eviction begins anew, on probation too",
        ),
        pytest.param(
            [SICK] * 6,
            [LOW, LOW, SICK, SICK, SICK, SICK],
            ["", "", "", "", "", ""],
            id="a surge of all ends the row of one",
        ),
        pytest.param(
            [SICK] * 6,
            [LOW, LOW, LOW, SICK, SICK, SICK],
            ["", "", "probation", "", "", "recovered"],
            id="no longer slower than the others",
        ),
        pytest.param(
            [SICK] * 8,
            [None] * 8,
            ["", "", "probation", "", "", "", "", ""],
            id="nothing to compare with: never evicted",
        ),
        pytest.param(
            [SICK] * 11,
            [None] * 5 + [LOW] * 6,
            ["", "", "probation", "", "", "", "", "", "", "evict", "evict"],
            id="what was not compared asks for no eviction",
        ),
        pytest.param(
            [SICK] * 7,
            [LOW] * 5 + [None, LOW],
            ["", "", "probation", "", "evict", "", "evict"],
            id="nor is one asked for when there is nobody to compare with",
        ),
    ],
)
def test_windows_and_what_is_said_after_each(
    a: list[float | None], b: list[float | None], said: list[str]
) -> None:
    assert drive(a, b) == said


@pytest.mark.parametrize(
    ("windows", "said"),
    [
        ((3, 1), ["", "", "probation+evict", "evict"]),
        ((2, 2), ["", "probation+evict", "evict", "evict"]),
        ((1, 4), ["probation", "", "", "evict"]),
        ((1, 1), ["probation+evict", "evict", "evict", "evict"]),
    ],
)
def test_none_is_asked_for_before_it_is_on_probation(
    windows: tuple[int, int], said: list[str]
) -> None:
    health = attrs.evolve(HEALTH, probation_windows=windows[0], evict_windows=windows[1])
    assert drive([SICK] * 4, [LOW] * 4, health) == said


def test_the_others_are_their_median_not_their_mean() -> None:
    assert drive([2.5] * 3, [LOW] * 3, c=LOW, d=100.0) == ["", "", "probation"]
    assert drive([2.5] * 3, [LOW] * 3, c=2.0, d=2.0) == [""] * 3


def test_a_window_is_judged_by_its_median() -> None:
    windows = [{"a": [1.0, 900.0, 1.5], "b": [1.0] * 3}] * 9
    assert kinds(play(Drift("ab", HEALTH), windows)) == [""] * 9
    windows = [{"a": [5.0, 0.01, 5.0], "b": [1.0] * 3}] * 3
    assert kinds(play(Drift("ab", HEALTH), windows)) == ["", "", "probation"]


def test_too_few_residuals_say_nothing_of_an_engine_nor_of_its_peers() -> None:
    drift = Drift("ab", HEALTH)
    assert not any(play(drift, [{"a": [SICK] * 2, "b": [LOW] * 3}] * 9))
    (finding,) = play(drift, [{"a": [SICK] * 3, "b": [LOW] * 2}] * 3, first=9)[-1]
    assert (finding.peers, finding.windows, finding.compared) == (None, 3, 0)


def test_a_finding_says_why() -> None:
    found = play(Drift("abc", HEALTH), [alike(a=SICK, b=1.0, c=1.5)] * 5)
    third = Finding(
        iid="a", kind=PROBATION, median=5.0, baseline=1.0, peers=1.25, windows=3, compared=3
    )
    assert found[2] == (third,)
    assert third.text == "3 windows in a row at 5.00 times its profile; 1.00 is usual for it"
    assert found[4] == (attrs.evolve(third, kind=EVICT, windows=5, compared=5),)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        found[4][0].iid = "b"  # type: ignore[misc]


def test_findings_are_told_once_and_by_name() -> None:
    drift = Drift("dcba", HEALTH)
    found = play(drift, [alike(d=SICK, c=LOW, b=LOW, a=SICK)] * 3)[-1]
    assert [(each.iid, each.kind) for each in found] == [("a", PROBATION), ("d", PROBATION)]
    assert drift.judge(90.0) == drift.judge(200.0) == ()


def test_windows_begin_by_the_clock_whenever_the_passes_are() -> None:
    drift = Drift("ab", attrs.evolve(HEALTH, probation_windows=1))
    for now in (29.0, 29.9, 30.0, 58.0, 59.999):  # two in the first window, three in the next
        drift.observe("b", 1.0, 1.0, now)
        drift.observe("a", SICK, 1.0, now)
        assert not drift.judge(now)
    (finding,) = drift.judge(1e6)  # a late pass
    assert finding.kind is PROBATION
    drift.observe("a", LOW, 1.0, 1e6)
    assert not drift.judge(1e6)


def test_a_window_that_ended_is_judged_before_the_next_observation() -> None:
    drift = Drift("ab", attrs.evolve(HEALTH, probation_windows=1))
    for now in (0.0, 1.0, 2.0):
        drift.observe("a", SICK, 1.0, now)
        drift.observe("b", LOW, 1.0, now)
    drift.observe("a", LOW, 1.0, 30.0)
    assert drift.on_probation("a")
    assert [each.kind for each in drift.judge(30.0)] == [PROBATION]


@pytest.mark.parametrize(
    ("observed_s", "predicted_s"),
    [
        (1.0, 0.0),
        (1.0, -1.0),
        (0.0, 1.0),
        (-1.0, 1.0),
        (-9.0, -1.0),
        (math.nan, 1.0),
        (1.0, math.nan),
        (math.inf, 1.0),
        (1.0, math.inf),
        (1.0, 5e-324),
    ],
)
def test_what_is_no_interval_says_nothing(observed_s: float, predicted_s: float) -> None:
    drift = Drift("a", attrs.evolve(HEALTH, min_samples=1, probation_windows=1))
    drift.observe("a", observed_s, predicted_s, 0.0)
    drift.judge(30.0)
    assert not drift.on_probation("a")
    drift.observe("a", SICK, 1.0, 30.0)
    drift.observe("a", observed_s, predicted_s, 30.0)
    (finding,) = drift.judge(60.0)
    assert finding.median == SICK


def test_a_penalty_lasts_as_long_as_the_probation() -> None:
    drift = Drift("ab", HEALTH)
    play(drift, [alike(a=SICK, b=LOW)] * 2)
    assert drift.penalty_s("a") == 0.0
    play(drift, [alike(a=SICK, b=LOW)], first=2)
    assert (drift.penalty_s("a"), drift.penalty_s("b")) == (1.5, 0.0)
    play(drift, [alike(a=LOW, b=LOW)] * 3, first=3)
    assert drift.penalty_s("a") == 0.0


def test_no_engine_has_a_price_for_being_alone_or_as_bad_as_all_others() -> None:
    drift = Drift("ab", HEALTH)
    play(drift, [alike(a=SICK)] * 3)
    assert drift.penalty_s("a") == 1.5
    play(drift, [alike(b=SICK)] * 3, first=3)
    assert drift.on_probation("a")
    assert drift.on_probation("b")
    assert drift.penalty_s("a") == drift.penalty_s("b") == 0.0
    alone = Drift("a", HEALTH)
    assert kinds(play(alone, [alike(a=SICK)] * 9)).count("probation") == 1
    assert alone.penalty_s("a") == 0.0


def test_an_engine_that_is_a_little_slower_than_its_profile_gets_used_to_it() -> None:
    drift, half = Drift("ab", HEALTH), BASELINE_WINDOWS // 2
    play(drift, [alike(a=1.25, b=LOW)] * half)
    assert drift.baseline("a") == 1.0
    play(drift, [alike(a=1.25, b=LOW)], first=half)
    assert drift.baseline("a") == 1.25
    assert drift.baseline("b") == 1.0
    assert not any(play(drift, [alike(a=2.5, b=LOW)] * 9, first=99))
    found = play(drift, [alike(a=2.51, b=LOW)] * 3, first=199)
    assert [(each.kind, each.baseline) for each in found[-1]] == [(PROBATION, 1.25)]


@pytest.mark.parametrize(
    ("level", "others", "learnt"),
    [(0.5, 0.5, 1.0), (1.9, 1.0, math.sqrt(2)), (2.1, 2.1, 1.0), (9.0, 9.0, 1.0), (9.0, 1.0, 1.0)],
)
def test_neither_speed_nor_sickness_is_learnt(level: float, others: float, learnt: float) -> None:
    drift = Drift("ab", HEALTH)
    play(drift, [alike(a=level, b=others)] * 3 * BASELINE_WINDOWS)
    assert drift.baseline("a") == learnt


def test_an_engine_learns_nothing_on_probation() -> None:
    drift = Drift("ab", HEALTH)
    play(drift, [alike(a=SICK, b=LOW)] * 3)
    play(drift, [alike(a=x, b=LOW) for x in (1.4, 1.4, SICK)] * 3 * BASELINE_WINDOWS, first=3)
    assert drift.on_probation("a")
    assert drift.baseline("a") == 1.0


def test_one_that_is_tried_again_is_on_probation_with_the_next_bad_window() -> None:
    drift = Drift(["a", "b"], HEALTH)
    bad = alike(a=SICK, b=LOW)
    assert kinds(play(drift, [bad] * 3)) == ["", "", "probation"]
    drift.try_again("a")
    assert not drift.on_probation("a")
    assert kinds(play(drift, [bad], first=3)) == ["probation"]
    drift.try_again("a")
    assert kinds(play(drift, [bad], first=4)) == ["probation+evict"]


def test_a_restart_forgets_the_row_the_window_the_baseline_and_what_was_not_told() -> None:
    drift = Drift("ab", HEALTH)
    play(drift, [alike(a=1.4, b=LOW)] * BASELINE_WINDOWS)
    play(drift, [alike(a=SICK, b=LOW)] * 4, first=31)
    for now in (1050.0, 1051.0, 1052.0):
        drift.observe("a", SICK, 1.0, now)
        drift.observe("b", LOW, 1.0, now)
    drift.observe("b", LOW, 1.0, 1080.0)  # the fifth ends; nobody has asked yet
    drift.observe("a", SICK, 1.0, 1080.0)
    drift.reset("a")
    assert not drift.judge(1080.0)
    assert (drift.on_probation("a"), drift.penalty_s("a"), drift.baseline("a")) == (False, 0.0, 1.0)
    assert kinds(play(drift, [{"a": [LOW, SICK, LOW], "b": [LOW] * 3}], first=36)) == [""]
    assert kinds(play(drift, [alike(a=SICK, b=LOW)] * 3, first=37)) == ["", "", "probation"]


def test_a_window_keeps_the_newest_residuals_and_enough_of_them() -> None:
    for samples in (1, 4 * MOST_RESIDUALS):
        health = attrs.evolve(HEALTH, min_samples=samples, probation_windows=1)
        most = max(MOST_RESIDUALS, samples)
        drift = Drift("a", health)
        for number in range(9 * most):
            drift.observe("a", 1.0 if number < 8 * most else SICK, 1.0, number / (9 * most))
        assert len(drift._records["a"].window) == most
        (finding,) = drift.judge(30.0)
        assert finding.median == SICK


# Properties, over windows of any residuals of up to four engines.

RESIDUALS = st.sampled_from([0.25, 0.9, 1.0, 1.3, 1.9, 2.0, 2.1, 3.0, 4.5, 10.0]) | st.floats(
    0.01, 100
)
IIDS = ("a", "b", "c", "d")
# Of the drift band: well, somewhat slow, at the band, over it by little and by more, sick.
LEVELS = st.none() | st.sampled_from([0.25, 0.5, 0.7, 1.0, 1.01, 1.2, 1.5, 3.0, 20.0])
ROWS = st.integers(1, 4)
HEALTHS = st.builds(
    Health,
    window_s=st.sampled_from([30.0, 1.0, 0.25]),
    drift_band=st.sampled_from([2.0, 1.5, 3.0]) | st.floats(1.001, 8),
    relative_band=st.sampled_from([1.5, 1.1, 2.0]) | st.floats(1.001, 8),
    min_samples=st.integers(1, 3),
    probation_windows=ROWS,
    evict_windows=ROWS,
    recovery_windows=ROWS,
    probation_penalty_s=st.sampled_from([1.5, 0.5]),
)


def histories(
    residuals: st.SearchStrategy[float] = RESIDUALS, iids: tuple[str, ...] = IIDS
) -> st.SearchStrategy[list[Window]]:
    """Stretches of windows that are like each other, since what matters is rows of them."""
    window = st.fixed_dictionaries(
        {}, optional=dict.fromkeys(iids, st.lists(residuals, max_size=4))
    )
    stretch = st.builds(lambda one, times: [one] * times, window, st.sampled_from([1, 1, 2, 3, 20]))
    return st.lists(stretch, max_size=8).map(lambda parts: list(itertools.chain(*parts)))


@given(HEALTHS, histories(), st.data())
def test_an_engine_within_its_band_is_in_no_finding(
    health: Health, history: list[Window], data: st.DataObject
) -> None:
    mild = st.lists(st.floats(0.01, health.drift_band) | st.just(health.drift_band), max_size=4)
    windows = [{**window, "a": data.draw(mild)} for window in history]
    drift = Drift(IIDS, health)
    assert not any(kinds(play(drift, windows, health=health)))
    assert drift.penalty_s("a") == 0.0


@given(HEALTHS, st.lists(st.lists(RESIDUALS, max_size=4), max_size=40), st.integers(2, 4))
def test_of_engines_that_are_alike_none_is_singled_out(
    health: Health, shown: list[list[float]], engines: int
) -> None:
    drift = Drift(IIDS[:engines], health)
    found = play(drift, [dict.fromkeys(IIDS[:engines], each) for each in shown], health=health)
    assert not any(found)


@given(HEALTHS, histories(), st.randoms(use_true_random=False))
def test_the_order_of_engines_does_not_matter(
    health: Health, history: list[Window], rng: random.Random
) -> None:
    def shuffled(iids: list[str]) -> list[str]:
        return rng.sample(iids, len(iids))

    mixed = [{iid: window[iid] for iid in shuffled(list(window))} for window in history]
    found = play(Drift(IIDS, health), history, health=health)
    assert play(Drift(shuffled(list(IIDS)), health), mixed, health=health) == found


@given(HEALTHS, histories(), st.permutations(IIDS))
def test_names_do_not_matter(health: Health, history: list[Window], names: list[str]) -> None:
    other = dict(zip(IIDS, names, strict=True))
    renamed = [{other[iid]: shown for iid, shown in window.items()} for window in history]
    found = play(Drift(IIDS, health), history, health=health)
    again = play(Drift(IIDS, health), renamed, health=health)
    for before, after in zip(found, again, strict=True):
        moved = [attrs.evolve(each, iid=other[each.iid]) for each in before]
        assert sorted(moved, key=lambda each: each.iid) == list(after)


@given(HEALTHS, histories(), histories(st.floats(0.01, 100), ("b", "c", "d")))
def test_enough_good_windows_end_any_probation(
    health: Health, history: list[Window], meanwhile: list[Window]
) -> None:
    drift = Drift(IIDS, health)
    play(drift, history, health=health)
    rest = (meanwhile + [{}] * health.recovery_windows)[: health.recovery_windows]
    windows = [{**window, "a": [1.0] * 3} for window in rest]
    play(drift, windows, health=health, first=len(history))
    assert not drift.on_probation("a")
    assert drift.penalty_s("a") == 0.0


@given(HEALTHS, histories())
def test_a_finding_is_borne_out_by_its_numbers(health: Health, history: list[Window]) -> None:
    drift, on_probation = Drift(IIDS, health), set[str]()
    for found in play(drift, history, health=health):
        for each in found:
            low, high = 1.0, math.sqrt(health.drift_band)
            assert low <= each.baseline <= high < health.drift_band
            slow = each.median > health.drift_band * each.baseline
            worse = each.peers is None or each.median > health.relative_band * each.peers
            assert (slow and worse) is (each.kind is not RECOVERED)
            assert 0 <= each.compared <= each.windows
            if each.kind is PROBATION:
                assert each.iid not in on_probation
                assert each.windows == health.probation_windows
                on_probation.add(each.iid)
            elif each.kind is EVICT:
                assert each.iid in on_probation
                assert each.peers is not None
                assert each.compared >= max(health.evict_windows, health.probation_windows)
            else:
                assert each.windows == health.recovery_windows
                on_probation.remove(each.iid)
    assert {iid for iid in IIDS if drift.on_probation(iid)} == on_probation


@given(HEALTHS, histories(iids=("a",)))
def test_an_engine_that_is_alone_is_never_to_be_evicted(
    health: Health, history: list[Window]
) -> None:
    drift = Drift("a", health)
    found = play(drift, history, health=health)
    assert not any(each.kind is EVICT for each in itertools.chain(*found))
    assert drift.penalty_s("a") == 0.0


@given(HEALTHS, st.floats(0, 1), st.integers(0, 9))
def test_the_band_is_around_what_the_engine_has_shown(
    health: Health, part: float, odd: int
) -> None:
    normal = max(1.0, min(health.drift_band**part, math.sqrt(health.drift_band)))
    drift = Drift("a", health)
    play(drift, [alike(a=normal)] * BASELINE_WINDOWS + [alike(a=LOW)] * odd, health=health)
    assert drift.baseline("a") == normal
    edge = health.drift_band * normal
    assert not any(play(drift, [alike(a=edge)] * 9, health=health, first=99))
    play(drift, [alike(a=math.nextafter(edge, math.inf))] * 9, health=health, first=199)
    assert drift.on_probation("a")


@given(HEALTHS, histories(), st.sampled_from([2.0**-9, 0.5, 4.0, 2.0**9]))
def test_the_unit_of_time_does_not_matter(
    health: Health, history: list[Window], unit: float
) -> None:
    found = play(Drift(IIDS, health), history, health=health)
    scaled = attrs.evolve(health, window_s=health.window_s * unit)
    assert play(Drift(IIDS, scaled), history, health=scaled, unit=unit) == found


@given(histories(), st.sampled_from([1.0, 2.0, 8.0]))
def test_far_over_the_band_only_the_ratio_to_the_others_matters(
    history: list[Window], factor: float
) -> None:
    def times(by: float) -> list[Window]:
        return [{iid: [each * by for each in w[iid]] for iid in w} for w in history]

    # 0.01 x 1024 is over all bands and baselines: nothing is learnt, and nothing within.
    one = play(Drift(IIDS, HEALTH), times(1024.0))
    other = play(Drift(IIDS, HEALTH), times(1024.0 * factor))
    assert [kinds(one, iid) for iid in IIDS] == [kinds(other, iid) for iid in IIDS]


@given(HEALTHS, histories(), histories())
def test_after_a_reset_nothing_of_before_is_left(
    health: Health, before: list[Window], after: list[Window]
) -> None:
    drift = Drift(IIDS, health)
    play(drift, before, health=health)
    now = (len(before) + 0.5) * health.window_s
    for iid, number in itertools.product(IIDS, range(3)):
        drift.observe(iid, SICK + number, 1.0, now)
    for iid in IIDS:
        drift.reset(iid)
    again = play(drift, after, health=health, first=len(before))
    assert again == play(Drift(IIDS, health), after, health=health)


class Known:
    """One engine in the model: everything that it ever showed."""

    def __init__(self) -> None:
        self.residuals: list[tuple[int, float]] = []
        """With the window of each."""
        self.judged: list[tuple[float, float, float | None, bool]] = []
        """Median, baseline, the others' median, and whether that is bad, of each such window."""
        self.learnt: list[float] = []
        self.probation = False

    @property
    def baseline(self) -> float:
        """Half of the last 31 are at most that much."""
        last = sorted(([1.0] * 31 + self.learnt)[-31:])
        return last[15]

    def row(self, *, bad: bool) -> list[float | None]:
        """What the newest windows of that kind were compared with, up to one of the other."""
        newest = itertools.takewhile(lambda each: each[3] is bad, reversed(self.judged))
        return [peers for _, _, peers, _ in newest]


class DriftMachine(RuleBasedStateMachine):
    """Engines are observed and judged at any times, and restart."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.window = 0
        self.told: dict[str, list[Finding]] = {}

    @initialize(health=HEALTHS, engines=st.integers(1, 4))
    def build(self, health: Health, engines: int) -> None:
        self.health = health
        self.drift = Drift(IIDS[:engines], health)
        self.model = {iid: Known() for iid in IIDS[:engines]}

    @rule(part=st.sampled_from([0.0, 0.125, 0.5, 1.0, 2.5]))
    def pass_time(self, part: float) -> None:
        self.now += part * self.health.window_s

    @rule(data=st.data(), residual=RESIDUALS, times=st.integers(1, 3))
    def observe(self, data: st.DataObject, residual: float, times: int) -> None:
        iid = data.draw(st.sampled_from(sorted(self.model)))
        self.show(iid, residual, times)

    @rule(
        levels=st.lists(LEVELS, min_size=4, max_size=4),
        times=st.integers(1, 4),
        windows=st.sampled_from([1, 1, 2, 3, 5, 20]),
        asked=st.booleans(),
    )
    def go_on(self, levels: list[float | None], times: int, windows: int, *, asked: bool) -> None:
        """Whole windows in which each engine is at one level, or silent."""
        for _ in range(windows):
            for iid, level in zip(self.model, levels, strict=False):
                if level is not None:
                    self.show(iid, level * self.health.drift_band, times)
            self.now += self.health.window_s
            if asked:
                self.judge()

    def show(self, iid: str, residual: float, times: int) -> None:
        self.end_windows()
        for _ in range(times):
            self.drift.observe(iid, residual * 0.5, 0.5, self.now)
            self.model[iid].residuals.append((self.window, residual))

    @rule()
    def judge(self) -> None:
        self.end_windows()
        expected = [each for iid in sorted(self.told) for each in self.told[iid]]
        assert list(self.drift.judge(self.now)) == expected
        self.told.clear()

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        iid = data.draw(st.sampled_from(sorted(self.model)))
        self.drift.reset(iid)
        self.model[iid] = Known()
        self.told.pop(iid, None)

    def end_windows(self) -> None:
        """Time has passed: the model judges what has ended, one window after another."""
        while (self.window + 1) * self.health.window_s <= self.now:
            shown = {
                iid: [residual for window, residual in known.residuals if window == self.window]
                for iid, known in self.model.items()
            }
            levels = {
                iid: median(each)
                for iid, each in shown.items()
                if len(each) >= self.health.min_samples
            }
            for iid in levels:
                self.told[iid] = self.verdicts(iid, levels)
            self.window += 1

    def verdicts(self, iid: str, levels: dict[str, float]) -> list[Finding]:
        health, known, level = self.health, self.model[iid], levels[iid]
        others = [levels[other] for other in levels if other != iid]
        peers = median(others) if others else None
        baseline = known.baseline
        vetoed = others and level <= health.relative_band * median(others)
        bad = level > health.drift_band * baseline and not vetoed
        known.judged.append((level, baseline, peers, bad))
        if not bad and not known.probation and level <= health.drift_band:
            known.learnt.append(max(1.0, min(level, math.sqrt(health.drift_band))))
        row = known.row(bad=bad)
        compared = len([each for each in row if each is not None])
        said = []
        if bad and not known.probation and len(row) >= health.probation_windows:
            known.probation = True
            said.append(PROBATION)
        if compared >= health.evict_windows and compared >= health.probation_windows:
            said += [EVICT] if bad and others else []
        if not bad and known.probation and len(row) >= health.recovery_windows:
            known.probation = False
            said.append(RECOVERED)
        return [
            Finding(
                iid=iid,
                kind=kind,
                median=level,
                baseline=baseline,
                peers=peers,
                windows=len(row),
                compared=compared,
            )
            for kind in said
        ]

    @invariant()
    def agrees(self) -> None:
        # What has ended since the last call is not known to either yet.
        on_probation = [iid for iid, known in self.model.items() if known.probation]
        for iid, known in self.model.items():
            assert self.drift.on_probation(iid) is known.probation
            assert self.drift.baseline(iid) == known.baseline
            last = known.probation and len(on_probation) < len(self.model)
            assert self.drift.penalty_s(iid) == (self.health.probation_penalty_s if last else 0.0)

    @invariant()
    def memory_is_bounded(self) -> None:
        for record in self.drift._records.values():
            assert len(record.window) <= MOST_RESIDUALS
            assert len(record._healthy) == BASELINE_WINDOWS
        assert len(self.drift._found) <= len(self.model)


TestDrift = DriftMachine.TestCase
TestDrift.settings = settings(deadline=None, stateful_step_count=20)
