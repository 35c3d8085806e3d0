"""Clients that leave, in every phase: the producer's blocks are free long before their lease."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from real_engines import Engines, RealEngine, wait_until
from real_router import Router, lease_of

pytestmark = [pytest.mark.real, pytest.mark.sockets]

# Of a lease of 30 s; what is left to it cannot have done this.
SOON_S = 10.0
PROMPT = "self.assertEqual(first, second) " * 20


@pytest.fixture(scope="module")
def router(stage: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    """One decode at a time: whoever comes second waits between the legs."""
    engines = stage.use("split")
    roles = {engines["p0"]: "prefill", engines["d0"]: "decode"}
    folder = tmp_path_factory.mktemp("router")
    with Router(folder, roles, serving={"decode_concurrency": 1}) as router:
        yield router


def prompt() -> str:
    """One that no cache knows."""
    return f"{uuid.uuid4()} {PROMPT}"


def residents(router: Router, iid: str, kind: str) -> int:
    return int(router.engine(iid)["residents"][kind])


def wait_over(router: Router) -> None:
    wait_until(lambda: router.state["requests"]["in_flight"] == 0, "no request is left")


def seconds_until_free(*engines: RealEngine) -> float:
    """How long until none of them holds a block or a request."""
    return wait_until(
        lambda: not any(each.pinned or each.busy for each in engines),
        "no engine holds KV blocks",
        SOON_S,
    )


@contextmanager
def released(router: Router, *, count: int) -> Iterator[None]:
    """So many handoffs are released by a release leg in this block, and none is orphaned."""
    before = router.state["kv"]
    yield
    after = router.state["kv"]
    assert after["released"] - before["released"] == count
    assert after["orphaned"] == before["orphaned"]


@pytest.mark.parametrize("stream", [False, True])
def test_during_the_prefill(
    stream: bool, router: Router, split: Engines, note: Callable[..., None]
) -> None:
    """A client leaves while its prompt is computed: the producer drops the work."""
    with released(router, count=0):
        with split["p0"].frozen(), router.leaver(prompt(), stream=stream) as client:
            wait_until(lambda: residents(router, "p0", "prefill") == 1, "its prefill is under way")
            client.leave()
            wait_over(router)
        note(free_after_s=round(seconds_until_free(split["p0"], split["d0"]), 2))


@pytest.mark.parametrize("stream", [False, True])
def test_between_the_legs(
    stream: bool, router: Router, split: Engines, note: Callable[..., None]
) -> None:
    """A client leaves between the legs: a release leg frees the producer at once."""
    with router.streaming(prompt(), max_tokens=1800, ignore_eos=True) as holds_the_place:
        wait_until(lambda: split["p0"].pinned == 0, "the first handoff is over")
        with released(router, count=1), router.leaver(prompt(), stream=stream) as client:
            wait_until(lambda: split["p0"].pinned > 0, "the second handoff is pinned")
            wait_until(lambda: residents(router, "p0", "prefill") == 0, "its prefill is over")
            time.sleep(0.5)
            assert split["p0"].pinned > 0, "by itself it would stay"
            client.leave()
            note(free_after_s=round(seconds_until_free(split["p0"]), 2))
            wait_until(lambda: router.state["requests"]["in_flight"] == 1, "the client is gone")
            holds_the_place.read_event()
    wait_over(router)
    seconds_until_free(split["p0"], split["d0"])


def test_before_the_decoder_has_pulled(
    router: Router, split: Engines, note: Callable[..., None]
) -> None:
    """A client leaves when a decoder has the handoff and has not pulled yet: it frees the producer
    all the same."""
    before = router.state["kv"]["orphaned"]
    with split["d0"].frozen(), router.leaver(prompt(), stream=True) as client:
        wait_until(lambda: residents(router, "d0", "decode") == 1, "its decode is dispatched")
        wait_until(lambda: split["p0"].pinned > 0, "its handoff is pinned")
        client.leave()
        wait_over(router)
    note(free_after_s=round(seconds_until_free(split["p0"], split["d0"]), 2))
    assert router.state["kv"]["orphaned"] == before


@pytest.mark.parametrize("stream", [False, True])
def test_during_the_decode(
    stream: bool, router: Router, split: Engines, note: Callable[..., None]
) -> None:
    """A client leaves while its answer is generated: the decoder stops, nothing is pinned."""
    lasting = {"max_tokens": 1800, "ignore_eos": True}
    with released(router, count=0), router.leaver(prompt(), stream=stream, **lasting) as client:
        if stream:
            client.read_until(b"data: {")
        else:
            wait_until(lambda: split["d0"].busy == 1, "the decoder generates")
            wait_until(lambda: split["p0"].pinned == 0, "it has pulled")
        client.leave()
        note(free_after_s=round(seconds_until_free(split["p0"], split["d0"]), 2))
        wait_over(router)


def test_at_any_moment(router: Router, split: Engines, note: Callable[..., None]) -> None:
    """Forty clients leave at forty moments: not a block is left behind when the lease is over.

    Mostly all are free at once. An engine that has computed a prefill and not yet answered when its
    client leaves throws the answer away and keeps the blocks: no one learns their name.
    """
    draw = random.Random(7)
    before = router.state["kv"]
    for _ in range(40):
        with router.leaver(prompt(), stream=draw.random() < 0.5, max_tokens=4):
            time.sleep(draw.uniform(0, 0.15))
    wait_over(router)
    within = lease_of(split.all[:2]) + SOON_S
    free = wait_until(lambda: split["p0"].pinned == 0, "nothing is pinned", within)
    after = router.state["kv"]
    note(
        free_after_s=round(free, 2),
        released=after["released"] - before["released"],
        orphaned=after["orphaned"] - before["orphaned"],
    )
