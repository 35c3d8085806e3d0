"""Engines that refuse with 503 (`--max-num-queued-reqs`): tried elsewhere, and soon used again."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from real_engines import PATIENCE_S, Engines, RealEngine, wait_until
from real_router import COMPLETIONS, Router, completion

pytestmark = [pytest.mark.real, pytest.mark.sockets]

REFUSED = "vllm:admission_rejections_total{reason=max_num_queued_reqs}"


@contextmanager
def full(engine: RealEngine) -> Iterator[None]:
    """As many requests on the engine as it takes, for some seconds."""
    most = engine.options.max_num_queued_reqs
    assert most is not None
    with ExitStack() as stack:
        for _ in range(most):
            body = completion(str(uuid.uuid4()), max_tokens=600, ignore_eos=True, stream=True)
            asked = httpx.stream("POST", engine.url + COMPLETIONS, json=body, timeout=PATIENCE_S)
            assert stack.enter_context(asked).status_code == 200
        yield
        assert engine.busy == most, "it was not full to the end"


def ask(router: Router, engine: RealEngine) -> httpx.Response:
    """One request; what is answered with 200 has to be right."""
    body = completion(f"{uuid.uuid4()} while True:")
    answer = router.post(COMPLETIONS, body)
    if answer.status_code == 200:
        assert answer.json()["choices"] == engine.post(COMPLETIONS, body).json()["choices"]
    return answer


@pytest.mark.parametrize("full_leg", ["prefill", "decode"])
def test_another_engine_takes_it(
    full_leg: str, both: Engines, tmp_path: Path, note: Callable[..., None]
) -> None:
    """One of two engines of a role is full: the request goes to the other, and is right."""
    b0, b1, b2 = both.all
    # Equal engines are taken by name: the full one comes first.
    roles = {b0: full_leg, b1: full_leg, b2: "decode" if full_leg == "prefill" else "prefill"}
    with Router(tmp_path, roles, serving={"max_attempts": 2}) as router:
        before = b0.counters()[REFUSED]
        with full(b0):
            for _ in range(3):
                assert ask(router, b1).status_code == 200
            refused = b0.counters()[REFUSED] - before
            assert router.engine("b0")["state"] == "serving"
        attempts = [row["attempts"] for row in router.rows(count=3)]
        assert refused >= 1
        assert attempts[0][0]["code"] == "engine_busy"
        wait_until(lambda: b0.busy == 0, "it is not full any more")
        for _ in range(3):
            assert ask(router, b1).status_code == 200
        last = router.rows(count=6)[-1]["attempts"][-1]
        assert last[full_leg] == "b0"
        note(refused_by_the_engine=int(refused), attempts=[len(each) for each in attempts])
    wait_until(lambda: not any(each.pinned for each in both.all), "nothing is pinned")


@pytest.mark.parametrize("full_leg", ["prefill", "decode"])
def test_there_is_no_other(
    full_leg: str, both: Engines, tmp_path: Path, note: Callable[..., None]
) -> None:
    """The only engine of a role is full: 503 with `retry-after`, and no blackout after it."""
    b0, b1, b2 = both.all
    roles = {b0: full_leg, b1: "decode" if full_leg == "prefill" else "prefill"}
    with Router(tmp_path, roles) as router:
        with full(b0):
            for _ in range(4):
                answer = ask(router, b2)
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "engine_busy"
                assert float(answer.headers["retry-after"]) > 0
            assert router.engine("b0")["state"] == "serving"
            # What was prefilled for nothing is free before its lease: the refusal itself frees it.
            if full_leg == "decode":
                note(free_after_s=round(wait_until(lambda: b1.pinned == 0, "it is free", 4), 2))
        wait_until(lambda: b0.busy == 0, "it is not full any more")
        assert ask(router, b2).status_code == 200
        note(retry_after=answer.headers["retry-after"])
