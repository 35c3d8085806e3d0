"""The connection pool against a model, with a server that does one thing at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf

import trio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from net_engine import ENGINE
from stepping import Job, SteppedRun

from narwhal.model import ConnectFailed, EngineClosed, Limit, PoolExhausted
from narwhal.net import ByteStream, ConnectionPool, MemoryNetwork
from narwhal.net.memory import MemoryListener

POOL_TIMEOUT = 5.0
CONNECT_TIMEOUT = 3.0
IDLE_EXPIRY = 4.0
BUFFER_BYTES = 128
BIG = 400  # does not fit into the buffers: its writer waits until the server reads
NUMBER = slice(6, 9)  # where a request has it
ANSWERS = st.sampled_from(["keep", "keep", "keep, and end", "close", "surplus"])


class Connection:
    """The server's end of a connection."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self.got = b""
        self.answer = b""
        """What is left to be sent of the answer under way."""
        self.how = ""
        self.idle_since = 0.0
        self.ended = False

    @property
    def number(self) -> int:
        """Of the request on it; -1 for none."""
        return int(self.got[NUMBER]) if len(self.got) >= NUMBER.stop else -1

    @property
    def asked(self) -> bool:
        """Whether it has the whole of a request."""
        head, end, body = self.got.partition(b"\r\n\r\n")
        return bool(end) and len(body) == int(head.rpartition(b" ")[2])

    def receive(self, most: int) -> bool:
        """Read up to `most` bytes of a request; whether anything came."""
        before = len(self.got)
        while not self.ended and len(self.got) < most:
            try:
                data = self.stream.receive_nowait(most - len(self.got))
            except trio.BrokenResourceError:
                data = b""
            if data is None:
                break
            self.got += data
            if not data:
                self.end()
        return self.ended or len(self.got) > before

    def end(self, *, reset: bool = False) -> None:
        self.stream.close(reset=reset)
        self.ended = True


class Client:
    """A request, and what the model says of it."""

    def __init__(self, number: int, *, replayable: bool, big: bool) -> None:
        size = BIG if big else 0
        head = b"POST /%03d HTTP/1.1\r\nhost: n\r\ncontent-length: %d\r\n\r\n" % (number, size)
        self.number = number
        self.request = head + b"q" * size
        self.replayable = replayable
        self.job: Job[bytes]
        self.connection: Connection | None = None
        """Once it is known, for one that has asked."""
        self.reused = False
        self.answered = False
        """Whether a byte of the answer came."""
        self.sent = 0
        """How often the server may have seen it."""
        self.until = inf
        """When it gives up waiting, or connecting."""
        self.ready = inf
        """When it is connected."""
        self.end: object = None
        """`ok`, `cancelled`, or what it raises."""


class PoolMachine(RuleBasedStateMachine):
    """Requests, cancels, time, and a server that answers, dies, goes deaf and hides.

    Between rules everything has come to rest. What happens at once happens within a rule.
    """

    def __init__(self) -> None:
        super().__init__()
        self.run = SteppedRun()
        self.network = MemoryNetwork(buffer_bytes=BUFFER_BYTES)
        self.listener: MemoryListener | None = self.network.listen(*ENGINE)
        self.connections: list[Connection] = []
        self.delay = 0.0
        self.deaf = False
        self.seen: Counter[int] = Counter()
        """How often the server saw each request."""
        self.clients: list[Client] = []
        self.waiting: list[Client] = []
        self.connecting: list[Client] = []
        self.asked: list[Client] = []
        self.idle: list[Connection] = []
        self.replays = 0
        self.closed = False
        self.agreed = False

    @initialize(limit=st.integers(1, 3))
    def build(self, limit: int) -> None:
        self.pool = ConnectionPool(
            *ENGINE,
            connect=self.connect,
            limit=limit,
            pool_timeout=POOL_TIMEOUT,
            connect_timeout=CONNECT_TIMEOUT,
            idle_expiry=IDLE_EXPIRY,
        )

    def teardown(self) -> None:
        try:
            if self.agreed:
                self.end()
        finally:
            self.run.close()

    def end(self) -> None:
        """Everybody leaves; nothing may be left."""
        for client in self.clients:
            client.job.cancel()
        self.run.settle()
        assert (self.pool.busy, self.pool.waiting) == (0, 0)
        self.pool.close()
        assert self.pool.idle == 0
        self.settle()
        for connection in self.connections:
            connection.end()
        assert self.network.open_streams == 0

    # The client's side

    async def connect(self, host: str, port: int) -> ByteStream:
        await trio.sleep(self.delay)
        return await self.network.connect(host, port)

    async def ask(self, client: Client) -> bytes:
        send = self.pool.send(client.request, replayable=client.replayable)
        with await send as exchange:
            assert await exchange.response() == 200
            return await exchange.read_all(100)

    @precondition(lambda self: len(self.unfinished()) < 8)
    @rule(replayable=st.sampled_from([True, True, False]), big=st.booleans())
    def send(self, replayable: bool, big: bool) -> None:
        client = Client(len(self.clients), replayable=replayable, big=big)
        self.clients.append(client)
        client.job = self.run.start(lambda: self.ask(client))
        self.take(client)
        self.settle()

    @precondition(lambda self: len(self.unfinished()) < 5)
    @rule(count=st.integers(2, 4), replayable=st.booleans())
    def send_some(self, count: int, replayable: bool) -> None:
        for _ in range(count):
            self.send(replayable, big=False)

    @precondition(lambda self: self.unfinished())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(self.unfinished()))
        client.job.cancel()
        self.leave(client)
        self.settle()

    @precondition(lambda self: self.idle)
    @rule()
    def close_expired(self) -> None:
        self.pool.close_expired()
        self.expire()
        self.settle()

    @precondition(lambda self: not self.closed and (self.waiting or self.connecting))
    @rule(
        certain=st.sampled_from([False, False, False, True]),
        delay=st.sampled_from([None, 1.0, inf]),
    )
    def close(self, certain: bool, delay: float | None) -> None:
        """For good, so it is done in few runs; perhaps while all connections are being opened."""
        if not certain:
            return
        if delay is not None:
            self.delay = delay
            for client in list(self.asked):
                self.cancel_one(client)
                self.settle()
            for _ in range(self.pool.limit + 1):
                self.send(replayable=True, big=False)
        self.pool.close()
        self.closed = True
        self.idle.clear()
        for client in self.waiting + self.asked:
            self.finish(client, EngineClosed)
        self.settle()
        self.pass_time(1.0)

    # The server's side

    @precondition(lambda self: self.answerable())
    @rule(data=st.data(), how=ANSWERS)
    def answer(self, data: st.DataObject, how: str) -> None:
        self.answer_one(data.draw(st.sampled_from(self.answerable())), how)
        self.settle()

    @precondition(lambda self: self.answerable())
    @rule(data=st.data(), how=ANSWERS, length=st.integers(1, 41))
    def begin_to_answer(self, data: st.DataObject, how: str, length: int) -> None:
        self.answer_one(data.draw(st.sampled_from(self.answerable())), how, length)
        self.settle()

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), reset=st.booleans())
    def die(self, data: st.DataObject, reset: bool) -> None:
        self.die_one(data.draw(st.sampled_from(self.asked)), reset=reset)
        self.settle()

    @precondition(lambda self: self.idle)
    @rule(data=st.data(), reset=st.booleans())
    def close_an_idle_one(self, data: st.DataObject, reset: bool) -> None:
        connection = data.draw(st.sampled_from(self.idle))
        if not connection.ended:
            connection.end(reset=reset)
        self.settle()

    @precondition(lambda self: self.answerable())
    @rule(how=ANSWERS)
    def answer_all(self, how: str) -> None:
        for client in self.answerable():
            self.answer_one(client, how)
            self.settle()

    @precondition(lambda self: any(client.reused for client in self.asked))
    @rule(times=st.integers(1, 2), length=st.integers(0, 1))
    def let_a_reused_one_die(self, times: int, length: int) -> None:
        client = next(client for client in self.asked if client.reused)
        for _ in range(times):
            if length and client in self.answerable():
                self.answer_one(client, "keep", length)
                self.settle()
            if client in self.asked:
                self.die_one(client, reset=False)
                self.settle()

    @rule(
        deaf=st.sampled_from([False] * 5 + [True]),
        delay=st.sampled_from([0.0] * 4 + [1.0, inf]),
        listening=st.sampled_from([True] * 5 + [False]),
    )
    def be_different(self, deaf: bool, delay: float, listening: bool) -> None:
        """The server is deaf: it reads no more of a request than which one it is. It is far away
        from now on. It does not listen any more.
        """
        self.deaf = deaf
        self.delay = delay
        if self.listener is not None:
            self.listener.close()
        self.listener = self.network.listen(*ENGINE) if listening else None
        self.settle()

    # Time

    @precondition(lambda self: self.waiting or self.connecting or self.idle)
    @rule(seconds=st.sampled_from([0.5, 1.0, 1.0, 4.0]))
    def pass_time(self, seconds: float) -> None:
        until = self.run.now + seconds
        while (event := self.next_event()) <= until:
            self.run.advance(event - self.run.now)
            self.let_expire()
            self.settle()
        self.run.advance(until - self.run.now)
        self.settle()

    # What happens at once

    @precondition(lambda self: self.asked)
    @rule(
        data=st.data(),
        what=st.sampled_from(["answer", "answer", "die", "cancel"]),
        how=ANSWERS,
        ticks=st.integers(0, 8),
    )
    def and_cancel(self, data: st.DataObject, what: str, how: str, ticks: int) -> None:
        """A connection comes free or dies, and whom that concerns is cancelled meanwhile."""
        busy = data.draw(st.sampled_from(self.asked))
        target = data.draw(st.sampled_from([*self.waiting[:2], busy]))
        before = ticks == 0 and target in self.waiting
        replays = self.replays
        acts: dict[str, Callable[[], None]] = {
            "answer": lambda: self.answer_one(busy, how),
            "die": lambda: self.die_one(busy, reset=False),
            "cancel": lambda: self.cancel_one(busy),
        }
        act = acts[what if busy in self.answerable() or what != "answer" else "die"]
        if before:
            self.leave(target)  # at once: it is woken by the cancel, and not by anything else
        act()
        for _ in range(ticks):
            self.run.tick()
        if not target.job.done:
            target.job.cancel()
            if target.end is None:
                self.leave(target)
            elif target.end != "ok":
                # It may have heard of the cancel on the way to the same end.
                target.end = (target.end, "cancelled")
        self.settle()
        if self.replays > replays and target is busy:
            # It heard of both in one moment, and may not have come to asking again.
            assert self.pool.replays in (replays, self.replays)
            self.replays = self.pool.replays

    def good_answers(self) -> list[Client]:
        """Clients whose answers leave a connection that can be used."""
        begun = [each for each in self.answerable() if each.answered]
        bad = [each for each in begun if each.connection and each.connection.how != "keep"]
        return [each for each in self.answerable() if each not in bad]

    @precondition(lambda self: self.waiting and self.good_answers() and not self.connecting)
    @rule(data=st.data(), released=st.booleans())
    def answer_as_patience_ends(self, data: st.DataObject, released: bool) -> None:
        """A connection comes free in the moment in which who waits for it gives up."""
        left = self.waiting[0].until - self.run.now
        busy = data.draw(st.sampled_from(self.good_answers()))
        if released:
            self.answer_one(busy, "keep")
            self.run.tick()
        self.run.jump(left)
        self.let_expire()
        if not released:
            self.answer_one(busy, "keep")
        self.settle()

    def cancel_one(self, client: Client) -> None:
        client.job.cancel()
        self.leave(client)

    def answer_one(self, client: Client, how: str, length: int = 1000) -> None:
        """Send the answer, or go on with it, up to `length` bytes in all."""
        connection = client.connection
        assert connection is not None
        if not client.answered:
            close = b"connection: close\r\n" if how == "close" else b""
            surplus = b"x" if how == "surplus" else b""
            head = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n%b\r\n" % close
            connection.answer = head + b"%03d" % client.number + surplus
            connection.how = how
            client.answered = True
        part, rest = connection.answer[:length], connection.answer[length:]
        if connection.how == "surplus" and len(rest) == 1:
            part, rest = part + rest, b""  # alone it would come when the connection is idle
        connection.answer = rest
        assert connection.stream.send_nowait(part) == len(part)
        if rest:
            return
        connection.got = b""
        if connection.how == "keep, and end":
            connection.end()
        connection.idle_since = self.run.now
        self.finish(client, "ok", keep=connection.how.startswith("keep"))

    def die_one(self, client: Client, *, reset: bool) -> None:
        assert client.connection is not None
        client.connection.end(reset=reset)
        self.lose(client)

    # The model of the pool

    def unfinished(self) -> list[Client]:
        return self.waiting + self.connecting + self.asked

    def answerable(self) -> list[Client]:
        return [each for each in self.asked if each.connection and each.connection.asked]

    def take(self, client: Client) -> None:
        self.expire()
        while self.idle:
            connection = self.idle.pop()
            if not connection.ended or client.replayable:
                self.write(client, connection)
                return
        if self.closed:
            client.end = EngineClosed
        elif len(self.connecting) + len(self.asked) < self.pool.limit:
            self.open(client)
        else:
            self.waiting.append(client)
            client.until = self.run.now + POOL_TIMEOUT

    def expire(self) -> None:
        fresh = self.run.now - IDLE_EXPIRY
        self.idle = [each for each in self.idle if each.idle_since > fresh]

    def open(self, client: Client) -> None:
        self.connecting.append(client)
        client.ready = self.run.now + self.delay
        client.until = self.run.now + CONNECT_TIMEOUT
        if self.closed:
            self.finish(client, EngineClosed)
        elif not self.delay:
            self.opened(client)

    def opened(self, client: Client) -> None:
        if self.listener is None:
            self.finish(client, ConnectFailed)
        elif self.closed:
            self.finish(client, EngineClosed)
        else:
            self.connecting.remove(client)
            self.write(client, None)

    def write(self, client: Client, connection: Connection | None) -> None:
        self.asked.append(client)
        client.connection = connection
        client.reused = connection is not None
        client.sent += 1
        if connection is not None and connection.ended:
            self.lose(client)

    def lose(self, client: Client) -> None:
        """Its connection died: it asks once more on another, in the same place, or fails."""
        if client.reused and client.replayable and not client.answered:
            self.replays += 1
            self.asked.remove(client)
            self.open(client)
        else:
            self.finish(client, EngineClosed)

    def leave(self, client: Client) -> None:
        self.finish(client, "cancelled")

    def finish(self, client: Client, end: object, *, keep: bool = False) -> None:
        """It is over; its place, and its connection if it is kept, go to who waits longest."""
        client.end = end
        if client in self.waiting:
            self.waiting.remove(client)
            return
        (self.asked if client in self.asked else self.connecting).remove(client)
        connection = client.connection if keep else None
        if self.waiting and not self.closed:
            first = self.waiting.pop(0)
            if connection is None or connection.ended:
                self.open(first)
            else:
                self.write(first, connection)
        elif connection is not None:
            self.idle.append(connection)

    def next_event(self) -> float:
        times = [client.until for client in self.waiting]
        times += [min(client.ready, client.until) for client in self.connecting]
        return min(times, default=inf)

    def let_expire(self) -> None:
        """Whose patience has ended leaves; only then do the others hear of anything."""
        now = self.run.now
        for client in [each for each in self.waiting if each.until <= now]:
            self.finish(client, PoolExhausted)
        for client in list(self.connecting):
            if client.ready <= now:
                self.opened(client)
            elif client.until <= now:
                self.finish(client, Limit.CONNECT)

    # Comparing

    def settle(self) -> None:
        self.agreed = False
        moved = True
        while moved:
            self.run.settle()
            while self.listener is not None and (stream := self.listener.accept_nowait()):
                self.connections.append(Connection(stream))
            most = NUMBER.stop if self.deaf else 1000
            moved = self.read(most)
        for client in self.asked:
            if client.connection is None:
                found = [each for each in self.connections if each.number == client.number]
                client.connection = next((each for each in found if not each.ended), None)

    def read(self, most: int) -> bool:
        """The server reads; whether there was anything."""
        moved = False
        for connection in self.connections:
            if connection.ended:
                continue
            before = connection.number
            moved = connection.receive(most) or moved
            if connection.number != before:
                self.seen[connection.number] += 1
        return moved

    @invariant()
    def agrees(self) -> None:
        assert self.pool.waiting == len(self.waiting)
        assert self.pool.busy == len(self.connecting) + len(self.asked)
        assert self.pool.idle == len(self.idle)
        assert self.pool.replays == self.replays
        for client in self.clients:
            assert client.job.done == (client.end is not None)
            if client.job.done:
                self.ended_as_it_should(client)
        self.agreed = True

    def ended_as_it_should(self, client: Client) -> None:
        error = client.job.error
        if client.job.cancelled:
            end: object = "cancelled"
        elif error is None:
            end = "ok"
            assert client.job.value == b"%03d" % client.number
        else:
            end = Limit.CONNECT if getattr(error, "limit", None) is Limit.CONNECT else type(error)
        assert end in client.end if isinstance(client.end, tuple) else end == client.end

    @invariant()
    def every_request_is_on_its_connection(self) -> None:
        for client in self.asked:
            assert client.connection is not None
            assert client.connection.number == client.number
            assert not client.connection.ended

    @invariant()
    def as_many_connections_are_open_as_there_should_be(self) -> None:
        at_the_server = sum(not each.ended for each in self.connections)
        at_the_client = self.network.open_streams - at_the_server
        assert at_the_client == len(self.asked) + len(self.idle)
        assert at_the_client + len(self.connecting) <= self.pool.limit

    @invariant()
    def nobody_waits_while_there_is_room(self) -> None:
        assert not self.pool.waiting or self.pool.busy == self.pool.limit

    @invariant()
    def nothing_is_sent_twice_that_must_not_be(self) -> None:
        for client in self.clients:
            assert self.seen[client.number] <= client.sent
            assert client.sent <= (2 if client.replayable else 1)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(deadline=None, max_examples=200, stateful_step_count=40)
