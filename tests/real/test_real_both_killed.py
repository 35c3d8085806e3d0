"""Engines that are killed: in the middle of a stream, and between the legs; and their return."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from real_engines import Engines, RealEngine, wait_until
from real_router import COMPLETIONS, Router, completion

pytestmark = [pytest.mark.real, pytest.mark.sockets]

PULLED = "vllm:prompt_tokens_by_source_total{source=external_kv_transfer}"
# Looks often, and asks for a proof with every pass.
WATCHFUL = {"liveness_every": 1, "readmit_every": 2}


def test_a_decoder_in_the_middle_of_a_stream(
    both: Engines, tmp_path: Path, note: Callable[..., None]
) -> None:
    """Its stream ends with an error event and is cut; the other decoder takes over.

    Restarted, it serves again only when it has generated, KV cache handed over to it.
    """
    b0, b1, b2 = both.all
    roles = {b0: "prefill", b1: "decode", b2: "decode"}
    with Router(tmp_path, roles, recovery=WATCHFUL, serving={"max_attempts": 2}) as router:
        with router.streaming(f"{uuid.uuid4()} raise", max_tokens=1800, ignore_eos=True) as stream:
            for _ in range(5):
                stream.read_event()
            assert router.engine("b1")["residents"]["decode"] == 1
            b1.kill()
            streamed = stream.read_on()
        assert not streamed.done
        assert streamed.error is not None
        assert streamed.error["code"] in {"stream_cut", "engine_closed"}
        note(in_the_stream=streamed.error["code"])
        ask(router, b2)
        note(ejected_after_s=round(router.wait_state("b1", "ejected"), 1))
        b1.restart()
        note(served_again_after_s=round(router.wait_state("b1", "serving"), 1))
        assert b1.counters()[PULLED] > 0, "it was proved by a handoff"
        changes = [row for row in router.rows("engine", count=2) if row["engine"] == "b1"]
        assert [row["cause"] for row in changes] == ["lost", "verified"]
        wait_until(lambda: not any(each.pinned for each in both.all), "nothing is pinned")
        for _ in range(2):
            ask(router, b2)


def test_the_producer_between_the_legs(
    both: Engines, tmp_path: Path, note: Callable[..., None]
) -> None:
    """A prefill engine dies when a decoder has its handoff and has not pulled yet.

    One attempt ends with an error, soon; a second one with another prefill engine, with the right
    answer. Where it was the only one, role control gives prefill a decoder in its place.
    """
    b0, b1, b2 = both.all
    body = completion(f"{uuid.uuid4()} class Reader:")
    alone = b2.post(COMPLETIONS, body).json()["choices"]
    only = {b0: "prefill", b1: "decode", b2: "decode"}
    two = {b0: "prefill", b1: "decode", b2: "prefill"}
    with (
        Router(tmp_path / "once", only, recovery=WATCHFUL) as once,
        Router(tmp_path / "again", two, recovery=WATCHFUL, serving={"max_attempts": 2}) as again,
        ThreadPoolExecutor(2) as pool,
    ):
        with b1.frozen():
            asked = [pool.submit(each.post, COMPLETIONS, body) for each in (once, again)]
            for router in (once, again):
                wait_until(
                    lambda router=router: router.engine("b1")["residents"]["decode"] == 1,  # type: ignore[misc]
                    "its decode is dispatched",
                )
            b0.kill()
        begun = time.monotonic()
        failed, answer = (each.result() for each in asked)
        note(
            answered_after_s=round(time.monotonic() - begun, 1),
            one_attempt=failed.json()["error"]["code"],
            two_attempts=answer.status_code,
        )
        assert (failed.status_code, answer.status_code) == (502, 200)
        assert failed.json()["error"]["code"] == "stream_error"
        assert answer.json()["choices"] == alone
        once.wait_state("b0", "ejected")
        wait_until(lambda: bool(once.state["roles"]["flips"]), "prefill has another engine")
        (flip,) = once.state["roles"]["flips"]
        assert (flip["to"], flip["rule"]) == ("prefill", "prefill_floor")
        for _ in range(3):
            ask(once, b2)
        attempt = once.rows(count=4)[-1]["attempts"][-1]
        assert attempt["prefill"] == flip["iid"] != attempt["decode"]
        b0.restart()
        for router in (once, again):
            router.wait_state("b0", "serving")
            for _ in range(3):
                ask(router, b2)
        note(moved_to_prefill=flip["iid"])


def ask(router: Router, engine: RealEngine) -> None:
    """One request, whose answer has to be that of one engine alone."""
    body = completion(f"{uuid.uuid4()} class Writer:")
    answer = router.post(COMPLETIONS, body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"] == engine.post(COMPLETIONS, body).json()["choices"]
