"""Engines that change their role, are drained and come back, while requests run."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from real_engines import PATIENCE_S, Engines, RealEngine, wait_until
from real_router import COMPLETIONS, Router, completion

pytestmark = [pytest.mark.real, pytest.mark.sockets]

PULLED = "vllm:prompt_tokens_by_source_total{source=external_kv_transfer}"


@contextmanager
def asked_all_along(router: Router, engine: RealEngine) -> Iterator[list[int]]:
    """One request after the other while the block runs; each is compared with one engine alone.

    Gives a list with the router's statuses so far; the block ends when the last is there.
    """
    over, statuses = Event(), list[int]()

    def ask() -> None:
        while not over.is_set():
            body = completion(f"{uuid.uuid4()} except OSError as", max_tokens=12)
            answer = router.post(COMPLETIONS, body)
            statuses.append(answer.status_code)
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"] == engine.post(COMPLETIONS, body).json()["choices"]

    with ThreadPoolExecutor(1) as pool:
        asking: Future[None] = pool.submit(ask)
        try:
            yield statuses
        finally:
            over.set()
            asking.result(PATIENCE_S)


def more(statuses: list[int], count: int = 2) -> None:
    """Wait until so many more are answered."""
    then = len(statuses) + count
    wait_until(lambda: len(statuses) >= then, "requests are answered")


def lifecycle(router: Router, what: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{router.url}/narwhal/lifecycle/{what}", json=body, timeout=PATIENCE_S)


def test_a_role_moves(both: Engines, tmp_path: Path, note: Callable[..., None]) -> None:
    """Role control moves a decoder that is in the middle of a stream to prefill.

    The stream goes on where it is; all answers before, during and after the move are right.
    """
    b0, b1, b2 = both.all
    roles = {b0: "prefill", b1: "decode", b2: "decode"}
    # A floor that is not kept is restored with the next pass.
    controller = {"min_prefill": 2, "monitor_interval_s": 4.0}
    body = completion(f"{uuid.uuid4()} for line in", max_tokens=400, ignore_eos=True)
    with Router(tmp_path, roles, controller=controller) as router:
        with (
            router.streaming(body["prompt"], max_tokens=400, ignore_eos=True) as first,
            router.streaming(body["prompt"], max_tokens=400, ignore_eos=True) as second,
        ):
            assert router.state["pools"] == {"prefill": ["b0"], "decode": ["b1", "b2"]}
            with asked_all_along(router, b2) as statuses:
                more(statuses)
                wait_until(lambda: bool(router.state["roles"]["flips"]), "an engine has moved")
                more(statuses, 6)
            (flip,) = router.state["roles"]["flips"]
            streams = [first.read_on(), second.read_on()]
        alone = b2.post(COMPLETIONS, body).json()["choices"][0]["text"]
        assert [stream.done for stream in streams] == [True, True]
        assert [stream.text for stream in streams] == [alone, alone]
        assert (flip["to"], flip["rule"]) == ("prefill", "prefill_floor")
        rows = [row["attempts"][-1] for row in router.rows(count=len(statuses) + 2)]
        moved = flip["iid"]
        # Each of two roles: decoding at first, prefilling then, for whoever has it by name.
        assert any(row["decode"] == moved for row in rows)
        before = both[moved].counters()["vllm:request_success_total"]
        wait_until(lambda: ask_until_prefilled(router, moved), f"{moved} prefills")
        assert both[moved].counters()["vllm:request_success_total"] > before
        note(moved=moved, answered_meanwhile=len(statuses))
    wait_until(lambda: not any(each.pinned for each in both.all), "nothing is pinned")


def ask_until_prefilled(router: Router, iid: str) -> bool:
    """Two requests at once; whether one of them was prefilled there."""
    count = len(router.rows())
    with ThreadPoolExecutor(2) as pool:
        prompts = [f"{uuid.uuid4()} " + "import os " * 150 for _ in range(2)]
        answers = list(pool.map(router.complete, prompts))
    assert [answer.status_code for answer in answers] == [200, 200]
    rows = router.rows(count=count + 2)
    return any(row["attempts"][-1]["prefill"] == iid for row in rows)


def test_drained_and_readmitted(both: Engines, tmp_path: Path, note: Callable[..., None]) -> None:
    """A decoder is drained under load and comes back by its checks, a real handoff among them."""
    b0, b1, b2 = both.all
    roles = {b0: "prefill", b1: "decode", b2: "decode"}
    with Router(tmp_path, roles) as router, asked_all_along(router, b2) as statuses:
        more(statuses)
        assert lifecycle(router, "drain", engine="b1").status_code == 200
        router.wait_state("b1", "drained")
        more(statuses)
        refused = lifecycle(router, "readmit", engine="b1")
        assert refused.status_code == 409
        assert refused.json()["failed"]["check"] == "identity"
        pulled = b1.counters()[PULLED]
        taken = lifecycle(router, "readmit", engine="b1", same_process=True)
        assert taken.status_code == 200, taken.text
        passed = taken.json()["passed"]
        assert "transfer" in passed
        assert b1.counters()[PULLED] > pulled
        assert router.engine("b1")["state"] == "serving"
        more(statuses)
        note(passed=passed, answered_meanwhile=len(statuses))
