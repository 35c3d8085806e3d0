"""An engine that is full refuses alike, whether it is emulated or real."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest
from real_cases import Pair, form_of_answer, form_of_stream, fresh, post
from real_engines import MODEL, PATIENCE_S, Engines, wait_until
from real_router import COMPLETIONS, completion, read_stream

from processes import Command

pytestmark = pytest.mark.sockets

MOST = 4
RUNNING = "vllm:num_requests_running"
REFUSED = "vllm:admission_rejections_total{reason=max_num_queued_reqs}"
BUSY = {"message": "text", "type": "Service Unavailable", "param": None, "code": 503}


@pytest.fixture(params=["emulated", pytest.param("real", marks=pytest.mark.real)])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Two engines that take four requests each."""
    if request.param == "real":
        both: Engines = request.getfixturevalue("both")
        yield Pair(both["b0"].url, both["b1"].url)
        return
    options = ("--engines=2", "--base-port=0", f"--model={MODEL}", "--max-model-len=2048")
    sizes = ("--kv-capacity=4096", f"--max-num-queued-reqs={MOST}", "--lease=6")
    with Command("emulate", *options, *sizes) as command:
        yield Pair(command.url(), command.url())


def test_a_full_engine(pair: Pair) -> None:
    """503 with the dialect's error, streamed or not; what it was to pull is free all the same."""
    prompt = fresh()
    params = pair.prefill(prompt)
    with ExitStack() as stack:
        for _ in range(MOST):
            body = completion(fresh("x"), max_tokens=500, ignore_eos=True, stream=True)
            asked = httpx.stream("POST", pair.consumer + COMPLETIONS, json=body, timeout=PATIENCE_S)
            assert stack.enter_context(asked).status_code == 200
        whole = post(pair.consumer, COMPLETIONS, completion(prompt))
        assert form_of_answer(whole) == [503, "application/json", {"error": BUSY}]
        assert "retry-after" not in whole.headers
        stream = read_stream(pair.consumer, COMPLETIONS, completion(prompt))
        assert form_of_stream(stream) == [503, {"error": BUSY}]
        decode = completion(prompt, kv_transfer_params=params)
        assert post(pair.consumer, COMPLETIONS, decode).status_code == 503
        # Before the lease of 6 s ends.
        wait_until(lambda: not pair.pinned(), "the producer is free", 4)
        assert httpx.get(f"{pair.consumer}/health", timeout=PATIENCE_S).status_code == 200
        counters = pair.counters(pair.consumer)
        assert counters[RUNNING] == MOST
        assert counters[REFUSED] >= 3
    wait_until(lambda: pair.counters(pair.consumer)[RUNNING] == 0, "its clients are gone")
