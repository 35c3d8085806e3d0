"""What turned out to be true of predictions: of an engine's work, and of sums of it.

A profile is measured once; engines are then updated, share their hosts, and get other prompts than
those that were measured. Under overload a few percent are much: admission fills the queue up to
the very target, so that predictions which are a little too low make everybody late that is let in.
"""

from __future__ import annotations

import math

LEAST, MOST = 0.5, 2.0
"""The bounds of the ratio, as of the decode correction: beyond them a profile is of no use, and
whatever made the engine so slow is no matter of prices."""
# Of prefills, in seconds: the work after which old observations weigh a third of what they did,
# and what the profile itself weighs at first, so that one odd prefill moves little.
PREFILL_MEMORY, PREFILL_PRIOR = 5.0, 0.5
# Of decodes, in tokens of single answers. An engine gives hundreds or thousands a second.
DECODE_MEMORY, DECODE_PRIOR = 1000.0, 50.0

FADES_S = 60.0
"""Without work, the time after which a third is left of what an engine's pace is off 1: short
against the minutes for which engines are ill, long against the pauses between requests."""

RELIED_ON = 0.99
"""Share of projections that are to hold."""
MOST_CAUTION = 0.25
# No engine takes a step in less, whatever a profile says: counts stay finite.
_SHORTEST_S = 1e-9
_STEP = 0.002


class Pace:
    """What an engine's work takes over what was predicted: a mean, weighted by the work.

    `memory` and `prior` are amounts of work, in whatever it is measured in. Guarantees: the ratio
    is within `LEAST` and `MOST`; it is exactly 1 until something was observed; an engine whose
    work always takes `r` times what is predicted comes to `r`.
    """

    def __init__(self, *, memory: float, prior: float) -> None:
        self._memory = memory
        self._predicted = self._taken = prior
        self._fresh = (0.0, 0.0)
        self.ratio = 1.0
        """Actual over predicted. Read several times for a request, and changed once at most."""

    def _settle(self) -> None:
        self.ratio = max(LEAST, min(MOST, self._taken / self._predicted))

    def observe(self, predicted: float, taken: float) -> None:
        """Work that was predicted to take the engine `predicted` took `taken`.

        Of those that are done together the first is said to have taken all the time, the others
        none: it is the sums that count, and old ones fade with the time that is taken.
        """
        self._fresh = (self._fresh[0] + taken, self._fresh[1] + predicted)
        kept = math.exp(-taken / self._memory)
        self._predicted = kept * self._predicted + predicted
        # Bounded, or one leg that hung would be remembered for hours of work.
        self._taken = min(MOST * self._predicted, kept * self._taken + taken)
        self._predicted = min(self._predicted, self._taken / LEAST)
        self._settle()

    def fade(self, seconds: float) -> None:
        """Nothing was observed for that long: what was is the less worth, and the profile more.

        An engine that was slow once would never be chosen again otherwise, and so never be seen
        to be fast.
        """
        self._taken += (self._predicted - self._taken) * -math.expm1(-seconds / FADES_S)
        self._settle()

    def fresh(self) -> tuple[float, float]:
        """What was taken, and what was predicted, of all that was observed since the last call."""
        fresh, self._fresh = self._fresh, (0.0, 0.0)
        return fresh


class Steps:
    """Counts the steps that an engine would have taken by its profile while its batch changed.

    So what a whole answer was predicted to take is a difference of two counts, however many
    requests came and went meanwhile.
    """

    def __init__(self) -> None:
        self._count = 0.0
        self._since = 0.0

    def advance(self, now: float, interval_s: float) -> float:
        """Count up to `now`; since the last call a step took `interval_s`. Returns the count.

        With an infinite interval nothing is counted.
        """
        self._count += (now - self._since) / max(interval_s, _SHORTEST_S)
        self._since = now
        return self._count


class Caution:
    """A share on top of the work ahead, so that `RELIED_ON` of all projections hold.

    What a mean does not show: profiles that are right on average are off for one mix of prompts
    and for the next one the other way. Each projection that does not hold raises the share by a
    step, each that holds lowers it by a hundredth of one, so that whatever the errors are like,
    one in a hundred is exceeded in the long run.
    """

    def __init__(self) -> None:
        self.share = 0.0

    def observe(self, projected_s: float, taken_s: float) -> None:
        """Something that was projected to take `projected_s` took `taken_s`."""
        held = taken_s <= projected_s * (1.0 + 1e-6)
        step = _STEP * (RELIED_ON - 1.0 if held else RELIED_ON)
        self.share = max(0.0, min(MOST_CAUTION, self.share + step))
