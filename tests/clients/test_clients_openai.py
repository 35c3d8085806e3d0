"""The official OpenAI client, synchronous and asynchronous, against the router as a process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest
import trio
from client_stage import Stage, fetch, open_stage, until

from narwhal.profiles import (
    DecodeCurve,
    PrefillCurve,
    Profile,
    ProfileRow,
    ProfileStore,
    Range,
    store_bytes,
)

pytestmark = pytest.mark.sockets

MODEL = "emulated"
CHAT: Any = [{"role": "user", "content": "Say something"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
SLOW = "fault=decode:pace(0.05)"
HANGS = "fault=decode:tokens(2);hang"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with open_stage(tmp_path_factory.mktemp("fleet"), max_request_bytes=100_000) as stage:
        yield stage


@pytest.fixture
def api(stage: Stage) -> Iterator[openai.OpenAI]:
    with client(stage) as api:
        yield api


def client(stage: Stage, **more: Any) -> openai.OpenAI:
    arguments: dict[str, Any] = {"max_retries": 0, "timeout": 30} | more
    return openai.OpenAI(base_url=f"{stage.url}/v1", api_key="none", **arguments)


# What is asked, whole and streamed


def test_a_chat_whole_and_streamed_are_the_same(api: openai.OpenAI) -> None:
    ask: Any = {"model": MODEL, "messages": CHAT, "max_completion_tokens": 9}
    whole = api.chat.completions.create(**ask)
    chunks = list(
        api.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
    )
    assert whole.object == "chat.completion"
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0].choices[0].delta.role == whole.choices[0].message.role == "assistant"
    shown = [chunk.choices[0] for chunk in chunks if chunk.choices]
    text = "".join(choice.delta.content or "" for choice in shown)
    assert text == whole.choices[0].message.content
    assert shown[-1].finish_reason == whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert chunks[-1].usage == whole.usage
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 9


def test_a_completion_of_text_and_of_token_ids(api: openai.OpenAI) -> None:
    ask: Any = {"model": MODEL, "max_tokens": 6}
    for prompt in ("Once upon a time", [1, 2, 3, 4]):
        whole = api.completions.create(**ask, prompt=prompt)
        stream = api.completions.create(**ask, prompt=prompt, stream=True)
        assert whole.object == "text_completion"
        assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 6


def test_tools_whole_and_streamed(api: openai.OpenAI) -> None:
    ask: Any = {"model": MODEL, "messages": CHAT, "tools": [WEATHER], "tool_choice": "required"}
    ask["max_tokens"] = 40
    (call,) = api.chat.completions.create(**ask).choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    with api.chat.completions.stream(**ask) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    (streamed,) = final.message.tool_calls or []
    assert "tool_calls.function.arguments.delta" in kinds
    assert (streamed.function.name, streamed.function.arguments) == (
        call.function.name,
        call.function.arguments,
    )
    assert final.finish_reason == "tool_calls"


def test_a_conversation_with_a_tool_s_answer_and_parts(api: openai.OpenAI) -> None:
    function = {"name": "weather", "arguments": '{"place": "Oslo"}'}
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "The weather in Oslo?"}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    answer = api.chat.completions.create(
        model=MODEL, messages=messages, tools=[WEATHER], max_tokens=5, seed=7, temperature=0
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls in (None, [])


def test_log_probabilities_whole_and_streamed(api: openai.OpenAI) -> None:
    ask: Any = {"model": MODEL, "messages": CHAT, "max_tokens": 4}
    ask |= {"logprobs": True, "top_logprobs": 2}
    whole = api.chat.completions.create(**ask).choices[0].logprobs
    assert whole is not None
    assert [len(each.top_logprobs) for each in whole.content or []] == [2, 2, 2, 2]
    chunks = api.chat.completions.create(**ask, stream=True)
    streamed = [c.choices[0].logprobs.content for c in chunks if c.choices[0].logprobs]
    assert [each for part in streamed for each in part or []] == whole.content

    older: Any = {"model": MODEL, "prompt": "Once", "max_tokens": 4, "logprobs": 3}
    row = api.completions.create(**older).choices[0].logprobs
    assert row is not None
    assert len(row.tokens or []) == len(row.token_logprobs or []) == 4
    parts = [c.choices[0].logprobs for c in api.completions.create(**older, stream=True)]
    assert [t for part in parts if part for t in part.tokens or []] == row.tokens
    assert [o for part in parts if part for o in part.text_offset or []] == row.text_offset


def test_reasoning_and_fields_that_the_client_does_not_know(api: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "out=reasoning:3,vendor hello"}]
    ask: Any = {"model": MODEL, "messages": messages, "max_tokens": 8}
    ask["extra_body"] = {"top_k": 5, "return_token_ids": True}
    whole = api.chat.completions.create(**ask)
    extra = whole.choices[0].model_extra or {}
    message = whole.choices[0].message.model_extra or {}
    assert len(extra["token_ids"]) == 8
    deltas = [
        (chunk.choices[0].delta.model_extra or {}).get("reasoning")
        for chunk in api.chat.completions.create(**ask, stream=True)
    ]
    assert "".join(part for part in deltas if part) == message["reasoning"]


def test_what_else_the_client_reads(api: openai.OpenAI, stage: Stage) -> None:
    assert [model.id for model in api.models.list()] == [MODEL]
    assert api.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError) as unknown:
        api.models.retrieve("of/another")
    assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")
    asked = api.with_options(default_headers={"x-request-id": "mine-1"})
    answer = asked.completions.create(model=MODEL, prompt="x", max_tokens=1)
    assert answer._request_id == "mine-1"
    raw = api.chat.completions.with_raw_response.create(model=MODEL, messages=CHAT, max_tokens=1)
    assert raw.headers["x-request-id"].startswith("req-")
    assert raw.parse().choices[0].finish_reason == "length"
    with api.completions.with_streaming_response.create(
        model=MODEL, prompt="x", max_tokens=3, stream=True
    ) as stream:
        lines = [line for line in stream.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert len(lines) == 4


# Errors


def test_errors_are_the_client_s_own_classes(api: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        api.chat.completions.create(model=MODEL, messages=CHAT, n=2)
    assert (bad.value.code, bad.value.param) == ("invalid_request", "n")
    assert bad.value.type == "invalid_request_error"
    assert bad.value.request_id is not None
    with pytest.raises(openai.NotFoundError) as missing:
        api.completions.create(model="other", prompt="x")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.APIStatusError) as large:
        api.completions.create(model=MODEL, prompt="x" * 100_001)
    assert (large.value.status_code, large.value.code) == (413, "body_too_large")
    with pytest.raises(openai.NotFoundError) as route:
        api.embeddings.create(model=MODEL, input="x")
    assert route.value.code == "not_found"


def test_an_engine_s_refusal_is_the_client_s_to_read(api: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        api.completions.create(model=MODEL, prompt="x", max_tokens=10**6)
    assert "max_tokens" in bad.value.message
    assert isinstance(bad.value.body, dict)
    assert bad.value.body["narwhal"]["request_id"] == bad.value.request_id


@pytest.mark.parametrize(
    ("fault", "kind", "status", "code"),
    [
        ("decode:status(500)", openai.InternalServerError, 502, "engine_status"),
        ("decode:status(503)", openai.InternalServerError, 503, "engine_busy"),
        ("prefill:nokv", openai.InternalServerError, 502, "handoff_incomplete"),
        ("prefill:rst", openai.InternalServerError, 502, "engine_closed"),
        ("decode:tokens(2);end", openai.InternalServerError, 502, "stream_cut"),
    ],
)
def test_an_engine_s_failure(
    api: openai.OpenAI, fault: str, kind: type[openai.APIStatusError], status: int, code: str
) -> None:
    with pytest.raises(kind) as failed:
        api.completions.create(model=MODEL, prompt=f"fault={fault}", max_tokens=4)
    assert (failed.value.status_code, failed.value.code) == (status, code)
    assert type(failed.value) is kind


@pytest.mark.parametrize("fault", ["tokens(2);rst", 'tokens(2);error("the")', "tokens(2);nodone"])
def test_a_stream_that_fails_raises_after_what_was_good(api: openai.OpenAI, fault: str) -> None:
    for chat in (False, True):
        prompt = f"fault=decode:{fault}"
        ask: Any = {"model": MODEL, "max_tokens": 9, "stream": True}
        stream: Any = (
            api.chat.completions.create(messages=[{"role": "user", "content": prompt}], **ask)
            if chat
            else api.completions.create(prompt=prompt, **ask)
        )
        seen = []
        with pytest.raises(openai.APIError) as failed:
            seen.extend(stream)
        assert len(seen) >= 2
        assert failed.value.code in {"engine_closed", "stream_cut", "stream_error"}
        assert "attempt 1 of 1" in failed.value.message


def test_engines_that_are_not_there(tmp_path: Path) -> None:
    with open_stage(tmp_path) as stage, client(stage) as api:
        fetch(f"{stage.engines[0]}/emulator/down", {})
        with pytest.raises(openai.InternalServerError) as gone:
            api.completions.create(model=MODEL, prompt="x")
        assert gone.value.code == "engine_unreachable"


# Retries, by what the answer says


class Waits(list[float]):
    """The client's pauses before it tried again; `then` is what happens in the first."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.then = then

    def __call__(self, seconds: float) -> None:
        if not self:
            self.then()
        self.append(seconds)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Waits:
    waits = Waits()
    # The client's own clock only: waiting for processes sleeps as well.
    monkeypatch.setattr("openai._base_client.time", SimpleNamespace(time=time.time, sleep=waits))
    return waits


def test_a_full_router_is_tried_again_when_it_says(waits: Waits, tmp_path: Path) -> None:
    with open_stage(tmp_path, max_connections=1) as stage, client(stage, max_retries=1) as api:
        stream = api.completions.create(model=MODEL, prompt=SLOW, max_tokens=1000, stream=True)
        next(stream)
        with pytest.raises(openai.RateLimitError) as full:
            api.with_options(max_retries=0).completions.create(model=MODEL, prompt="x")
        assert full.value.code == "queue_full"
        told = float(full.value.response.headers["retry-after"])

        def make_room() -> None:
            stream.close()
            until(lambda: stage.ended("client_closed"))

        waits.then = make_room
        answer = api.completions.create(model=MODEL, prompt="x", max_tokens=2)
        assert answer.choices[0].finish_reason == "length"
        assert waits == [told]


def test_a_refusal_that_no_waiting_helps_is_raised_at_once(waits: Waits, tmp_path: Path) -> None:
    always = Range(1, 10**6)
    profile = Profile(
        prefill=PrefillCurve(a=0.0, b=0.1, c=0.0, tokens=always, fit_mape=0.0, cv_mape=0.0),
        decode=DecodeCurve(
            t0=0.01, tr=0.0, tk=1e-9, requests=always, kv_tokens=always, fit_mape=0.0, cv_mape=0.0
        ),
    )
    rows = [ProfileRow(iid=iid, profile=profile) for iid in ("e0", "e1")]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/profiles.json").write_bytes(store_bytes(ProfileStore(rows=tuple(rows))))
    with (
        open_stage(tmp_path, admission="predictive") as stage,
        client(stage, max_retries=5) as api,
    ):
        assert api.completions.create(model=MODEL, prompt="short", max_tokens=2).choices
        with pytest.raises(openai.RateLimitError) as refused:
            api.completions.create(model=MODEL, prompt="word " * 100, max_tokens=2)
        assert refused.value.code == "prompt_too_long"
    assert not waits


def test_an_engine_s_own_pause_reaches_the_client(stage: Stage, waits: Waits) -> None:
    with client(stage, max_retries=1) as api:
        stage.fault(0, "prefill:status(503,null,7)*1")
        answer = api.completions.create(model=MODEL, prompt="x", max_tokens=2)
        assert answer.choices[0].finish_reason == "length"
    assert waits == [7.0]


# Leaving early


def test_closing_a_stream_frees_the_engine(api: openai.OpenAI, stage: Stage) -> None:
    with api.completions.create(model=MODEL, prompt=SLOW, max_tokens=2000, stream=True) as stream:
        next(stream)
        assert stage.running() == 1
    until(lambda: stage.running() == 0)
    until(lambda: stage.ended("client_closed"))
    assert stage.state()["requests"]["in_flight"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_runs_out_of_time_frees_the_engine(stage: Stage, stream: bool) -> None:
    before = stage.state()["requests"]["terminals"]["cancelled"]
    # A busy machine may take long to connect; nothing at all comes after two tokens.
    with client(stage, timeout=openai.Timeout(30, read=0.3)) as api:
        ask: Any = {"model": MODEL, "prompt": HANGS, "max_tokens": 9}
        with pytest.raises(openai.APITimeoutError):
            list(api.completions.create(**ask, stream=stream))
    until(lambda: stage.state()["requests"]["terminals"]["cancelled"] > before)
    until(lambda: stage.running() == 0)


# The asynchronous client, on both of its event loops

Main = Callable[[], Awaitable[None]]


def on_asyncio(main: Main) -> None:
    async def run() -> None:
        await main()

    asyncio.run(run())


def on_trio(main: Main) -> None:
    trio.run(main)


# The client leaves its own generators unfinished, which Trio, unlike asyncio, tells of.
leaves = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
loops = pytest.mark.parametrize("run", [on_asyncio, pytest.param(on_trio, marks=leaves)])


@loops
def test_the_asynchronous_client(stage: Stage, run: Callable[[Main], None]) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{stage.url}/v1", api_key="none", max_retries=0, timeout=30
        ) as api:
            whole = await api.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=7)
            stream = await api.chat.completions.create(
                model=MODEL, messages=CHAT, max_tokens=7, stream=True
            )
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            assert text == whole.choices[0].message.content
            with pytest.raises(openai.BadRequestError) as bad:
                await api.completions.create(model=MODEL, prompt=["a", "b"])
            assert bad.value.param == "prompt"

    run(main)


def test_a_cancelled_task_frees_the_engine(stage: Stage) -> None:
    before = stage.state()["requests"]["terminals"]["cancelled"]

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{stage.url}/v1", api_key="none") as api:
            for stream in (True, False):
                arrived = asyncio.Event()

                async def ask(*, stream: bool, arrived: asyncio.Event) -> None:
                    ask: Any = {"model": MODEL, "prompt": SLOW, "max_tokens": 2000}
                    if not stream:
                        arrived.set()
                    answer: Any = await api.completions.create(**ask, stream=stream)
                    async for _ in answer:
                        arrived.set()

                task = asyncio.create_task(ask(stream=stream, arrived=arrived))
                await arrived.wait()
                while not await asyncio.to_thread(stage.running):
                    pass
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

    asyncio.run(main())
    until(lambda: stage.running() == 0)
    until(lambda: stage.state()["requests"]["terminals"]["cancelled"] == before + 2)


def test_many_at_once_each_get_their_own_answer(stage: Stage) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{stage.url}/v1", api_key="none", max_retries=0, timeout=60
        ) as api:

            async def ask(n: int, *, stream: bool) -> str:
                prompt = f"story number {n}"
                if not stream:
                    whole = await api.completions.create(model=MODEL, prompt=prompt, max_tokens=12)
                    return whole.choices[0].text
                chunks = await api.completions.create(
                    model=MODEL, prompt=prompt, max_tokens=12, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in chunks])

            asked = [ask(n, stream=stream) for n in range(40) for stream in (False, True)]
            texts = await asyncio.gather(*asked)
            assert texts[::2] == texts[1::2]
            assert len(set(texts)) == 40

    asyncio.run(main())
    assert stage.running() == 0
