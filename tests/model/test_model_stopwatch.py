from hypothesis import given
from hypothesis import strategies as st

from narwhal.model import Phase, Stopwatch


@given(st.lists(st.tuples(st.sampled_from(Phase), st.floats(0, 100, allow_nan=False)), max_size=30))
def test_phases_sum_to_the_lifetime(steps: list[tuple[Phase, float]]) -> None:
    now = 5.0
    watch = Stopwatch(now)
    for phase, seconds in steps:
        now += seconds
        watch.enter(phase, now)
    assert watch.phase is (steps[-1][0] if steps else Phase.INGRESS)
    assert abs(sum(watch.spent(now + 1).values()) - (now + 1 - 5.0)) < 1e-6


def test_a_phase_that_is_entered_again_goes_on() -> None:
    watch = Stopwatch(0)
    watch.enter(Phase.PREFILL, 1)
    watch.enter(Phase.BACKOFF, 3)
    watch.enter(Phase.PREFILL, 4)
    assert watch.spent(6) == {Phase.INGRESS: 1, Phase.PREFILL: 4, Phase.BACKOFF: 1}
