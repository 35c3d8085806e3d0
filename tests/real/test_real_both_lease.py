"""Handoffs that outlive their lease: no answer has a token that was read from blocks used anew."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from real_engines import BLOCK, CONTEXT, Engines, RealEngine, wait_until
from real_router import COMPLETIONS, Router, completion

pytestmark = [pytest.mark.real, pytest.mark.sockets]

PREFILL_LEG = {"do_remote_decode": True, "do_remote_prefill": False}
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
LATE = "vllm:nixl_num_notifications_after_expiry_total"
PROMPT = "if not isinstance(value, str): raise TypeError " * 12


def prompt() -> str:
    return f"{uuid.uuid4()} {PROMPT}"


def use_the_pool_anew(engine: RealEngine) -> None:
    """Write over every free block of the engine's KV cache."""
    tag = [300 + byte for byte in uuid.uuid4().bytes]
    most = CONTEXT - BLOCK
    for number in range(engine.options.blocks * BLOCK // most + 1):
        ids = [300 + number, *tag, *(7 + n % 900 for n in range(most))][:most]
        assert engine.post(COMPLETIONS, completion(ids, max_tokens=1)).status_code == 200


def outlive_the_lease(producer: RealEngine, before: float) -> None:
    """Wait until the producer gives the blocks up, and have it use them for something else."""
    wait_until(lambda: producer.counters()[EXPIRED] > before, "the lease is over")
    use_the_pool_anew(producer)


def test_the_hazard(both: Engines, note: Callable[..., None]) -> None:
    """Two engines without the router: a late decode gets status 200 and wrong tokens."""
    b0, b1, b2 = both.all
    body = completion(prompt())
    right = b2.post(COMPLETIONS, body).json()["choices"][0]["text"]
    expired = b0.counters()[EXPIRED]
    leg = body | {"max_tokens": 1, "kv_transfer_params": PREFILL_LEG}
    handoff = b0.post(COMPLETIONS, leg).json()["kv_transfer_params"]
    outlive_the_lease(b0, expired)
    answer = b1.post(COMPLETIONS, body | {"kv_transfer_params": handoff})
    assert answer.status_code == 200
    wrong = answer.json()["choices"][0]["text"]
    assert wrong != right
    note(status_of_a_wrong_answer=answer.status_code)


@contextmanager
def routers(folder: Path, both: Engines, **serving: Any) -> Iterator[tuple[Router, Router]]:
    """The same engines behind a router that tries once, and behind one that tries again."""
    roles = {both["b0"]: "prefill", both["b1"]: "decode"}
    with (
        Router(folder / "once", roles, serving=serving) as once,
        Router(folder / "again", roles, serving={"max_attempts": 2, **serving}) as again,
    ):
        yield once, again


def test_a_decoder_that_pulls_too_late(
    both: Engines, tmp_path: Path, note: Callable[..., None]
) -> None:
    """The decoder stands still with the handoff in its hands until the lease is over.

    What it answers then is thrown away: 504, or another attempt, whose answer is right.
    """
    b0, b1, b2 = both.all
    body = completion(prompt())
    right = b2.post(COMPLETIONS, body).json()["choices"]
    before = b0.counters()
    with routers(tmp_path, both) as each, ThreadPoolExecutor(2) as pool:
        with b1.frozen():
            asked = [pool.submit(router.post, COMPLETIONS, body) for router in each]
            for router in each:
                wait_until(
                    lambda router=router: router.engine("b1")["residents"]["decode"] == 1,  # type: ignore[misc]
                    "the decode is dispatched",
                )
            outlive_the_lease(b0, before[EXPIRED])
        once, again = (each.result() for each in asked)
        assert once.status_code == 504
        assert once.json()["error"]["code"] == "handoff_expired"
        assert again.status_code == 200
        assert again.json()["choices"] == right
        (row,) = each[1].rows(count=1)
        assert [attempt["code"] for attempt in row["attempts"]] == ["handoff_expired", None]
        states = [router.engine("b1")["state"] for router in each]
        note(
            once=once.json()["error"]["code"],
            again=again.status_code,
            states=states,
            late_notifications=int(b0.counters()[LATE] - before[LATE]),
        )


def test_no_decoder_has_room_in_time(
    both: Engines, tmp_path: Path, note: Callable[..., None]
) -> None:
    """The only decode place is taken until the lease is over: the handoff is never sent."""
    b0, b1, b2 = both.all
    body = completion(prompt())
    right = b2.post(COMPLETIONS, body).json()["choices"]
    before = b0.counters()
    roles = {b0: "prefill", b1: "decode"}
    settings = {"decode_concurrency": 1, "max_attempts": 2}
    with Router(tmp_path, roles, serving=settings) as router, ThreadPoolExecutor(1) as pool:
        with router.streaming(prompt(), max_tokens=64, ignore_eos=True) as first:
            with b1.frozen():
                asked = pool.submit(router.post, COMPLETIONS, body)
                outlive_the_lease(b0, before[EXPIRED])
                time.sleep(0.5)
                wait_until(
                    lambda: router.counters()["narwhal_handoff_expired_total"] >= 1,
                    "the handoff is dropped",
                )
            assert first.read_on().done
        answer = asked.result()
        assert answer.status_code == 200
        assert answer.json()["choices"] == right
    note(late_notifications=int(b0.counters()[LATE] - before[LATE]))
    wait_until(lambda: b0.pinned == 0, "the producer holds nothing")
