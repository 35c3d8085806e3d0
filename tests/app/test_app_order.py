"""Who is served, in which order, who is turned away and when, against a model of the queue."""

from __future__ import annotations

import heapq
from math import inf, isqrt

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from narwhal.model import Phase, Terminal

from arithmetic_cases import apart, hundredths, now_and_then
from arithmetic_stage import visit
from stub_fleet import Play, good
from worlds import World, fleet_config, play

PRIMES = [n for n in range(2, 200) if all(n % d for d in range(2, isqrt(n) + 1))]
MOST = 9


@attrs.frozen(kw_only=True)
class Visitor:
    """A client: when it comes, how long its body takes, its answer, and its patience."""

    comes: float
    body: float
    served: float
    patience: float
    reset: bool


@attrs.frozen(kw_only=True)
class Hall:
    """The settings."""

    seats: int
    places: int
    queue_s: float
    request_s: float


@st.composite
def visitors(draw: st.DrawFn) -> list[Visitor]:
    """A few who come within seconds; each has primes of its own, so that nothing coincides."""
    count, primes = draw(st.integers(1, MOST)), iter(PRIMES[2:])

    def seconds(most: int) -> float:
        return draw(hundredths(0, most)) + apart(next(primes))

    return [
        Visitor(
            comes=seconds(300),
            body=draw(now_and_then(0.0, st.just(seconds(150)), 3)),
            served=seconds(200),
            patience=draw(now_and_then(inf, st.just(seconds(300)), 4)),
            reset=draw(st.booleans()),
        )
        for _ in range(count)
    ]


HALLS = st.builds(
    Hall,
    seats=st.integers(1, 3),
    places=st.integers(1, 3),
    queue_s=hundredths(1, 200).map(lambda seconds: seconds + apart(2)),
    request_s=st.sampled_from([3.0, 100.0]).map(lambda seconds: seconds + apart(3)),
)


class Queue:
    """Events in their order; what each visitor comes to."""

    def __init__(self, hall: Hall, visitors: list[Visitor]) -> None:
        self.hall, self.visitors = hall, visitors
        self.ends: dict[int, tuple[Terminal, str | None, float]] = {}
        self.admitted: list[tuple[int, float]] = []
        self.most = 0
        """Held at the same time."""
        self._inside: set[int] = set()
        self._seated: set[int] = set()
        self._line: list[int] = []
        self._events = [(each.comes, "comes", n) for n, each in enumerate(visitors)]
        heapq.heapify(self._events)
        while self._events:
            now, event, n = heapq.heappop(self._events)
            if n not in self.ends:
                getattr(self, f"_{event}")(n, now)

    def _at(self, when: float, event: str, n: int) -> None:
        heapq.heappush(self._events, (when, event, n))

    def _comes(self, n: int, now: float) -> None:
        if len(self._inside) >= self.hall.seats + self.hall.places:
            self.ends[n] = (Terminal.REJECTED, "queue_full", now)
            return
        self._inside.add(n)
        self.most = max(self.most, len(self._inside))
        visitor = self.visitors[n]
        self._at(now + visitor.body, "asks", n)
        self._at(now + visitor.patience, "leaves", n)
        self._at(now + self.hall.request_s, "expires", n)

    def _asks(self, n: int, now: float) -> None:
        if len(self._seated) < self.hall.seats:
            self._sits(n, now)
        else:
            self._line.append(n)
            self._at(now + self.hall.queue_s, "tires", n)

    def _sits(self, n: int, now: float) -> None:
        self._seated.add(n)
        self.admitted.append((n, now))
        self._at(now + self.visitors[n].served, "done", n)

    def _done(self, n: int, now: float) -> None:
        self._ends(n, Terminal.COMPLETED, None, now)

    def _leaves(self, n: int, now: float) -> None:
        self._ends(n, Terminal.CANCELLED, "client_closed", now)

    def _expires(self, n: int, now: float) -> None:
        self._ends(n, Terminal.EXPIRED, "request_expired", now)

    def _tires(self, n: int, now: float) -> None:
        if n in self._line:
            self._ends(n, Terminal.EXPIRED, "queue_expired", now)

    def _ends(self, n: int, terminal: Terminal, code: str | None, now: float) -> None:
        self.ends[n] = (terminal, code, now)
        self._inside.remove(n)
        if n in self._line:
            self._line.remove(n)
        if n in self._seated:
            self._seated.remove(n)
            if self._line:
                self._sits(self._line.pop(0), now)


class Doors:
    """Lets the visitors in, and keeps what can be seen of them."""

    def __init__(self, world: World, visitors: list[Visitor], told: Queue) -> None:
        self.world, self.visitors, self.told = world, visitors, told
        self.core = world.router.core
        self.start = trio.current_time()
        self.served: list[tuple[int, float]] = []
        self.most = 0
        world.script(self._script)

    async def _script(self, leg: Play) -> None:
        if leg.leg == "prefill":
            self.served.append((int(leg.body["user"]), trio.current_time() - self.start))
            assert self.core.queue.admitted <= self.told.hall.seats
        if leg.leg == "decode":
            await leg.wait(self.visitors[int(leg.body["user"])].served)
        await good(leg)

    async def open(self) -> None:
        async with trio.open_nursery() as nursery:
            for n, visitor in enumerate(self.visitors):
                nursery.start_soon(self._let_in, n, visitor)
                nursery.start_soon(self._count, visitor.comes)
        await trio.sleep(1e-6)  # who left last is heard of

    async def _let_in(self, n: int, visitor: Visitor) -> None:
        await trio.sleep_until(self.start + visitor.comes)
        answer = await visit(
            self.world,
            {"user": str(n)},
            body=visitor.body,
            leaves_at=visitor.patience,
            reset=visitor.reset,
        )
        if answer is None:
            return
        terminal, code, end = self.told.ends[n]
        assert answer.status == STATUS[terminal]
        assert trio.current_time() - self.start == pytest.approx(end, abs=1e-9)
        again = code in ("queue_full", "queue_expired")
        assert ("retry-after" in answer.headers) == again

    async def _count(self, when: float) -> None:
        await trio.sleep_until(self.start + when + 1e-9)
        self.most = max(self.most, self.core.retained)
        assert self.core.queue.waiting <= self.told.hall.places


STATUS = {Terminal.COMPLETED: 200, Terminal.REJECTED: 429, Terminal.EXPIRED: 504}


@settings(deadline=None, max_examples=250)
@given(hall=HALLS, visitors=visitors(), schedule=st.integers(0, 2**32))
def test_first_come_first_served(hall: Hall, visitors: list[Visitor], schedule: int) -> None:
    told = Queue(hall, visitors)

    async def body(world: World) -> None:
        doors = Doors(world, visitors, told)
        await doors.open()
        assert doors.most == told.most <= hall.seats + hall.places
        assert [n for n, _ in doors.served] == [n for n, _ in told.admitted]
        times = [when for _, when in told.admitted]
        assert [when for _, when in doors.served] == pytest.approx(times, abs=1e-9)
        ends = sorted(
            ((row.arrival - doors.start + row.request_s, row) for row in world.rows),
            key=lambda each: each[0],
        )
        for (end, row), (terminal, code, when) in zip(
            ends, sorted(told.ends.values(), key=lambda each: each[2]), strict=True
        ):
            assert end == pytest.approx(when, abs=1e-9)
            assert (row.terminal, row.code) == (terminal, code)
            assert row.spent.get(Phase.QUEUE, 0.0) <= hall.queue_s + 1e-9

    config = fleet_config(
        max_connections=hall.seats,
        queue_capacity=hall.places,
        queue_timeout_s=hall.queue_s,
        prefill_concurrency=hall.seats,
        decode_concurrency=hall.seats,
        request_timeout_s=hall.request_s,
        engine={"tokenize": False, "first_token_timeout_s": 100.0},
    )
    play(body, config, schedule=schedule)
