"""A router inside a Trio program, with emulated engines: runs anywhere, in about two seconds.

python docs/examples/embed.py
"""

from functools import partial

import httpx
import trio

import narwhal
from narwhal.app import data_server
from narwhal.emulator import EmulatedFleet, EngineSettings
from narwhal.net import open_listeners

ROLES = {"p0": "prefill", "d0": "decode", "d1": "decode"}


def fleet_document(urls: dict[str, str]) -> dict[str, object]:
    """What a fleet file would hold; `narwhal.load_fleet` reads one from a file."""
    return {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": "demo",
        "engines": [{"iid": iid, "url": url, "role": ROLES[iid]} for iid, url in urls.items()],
        "slo": {"ttft_s": 2.0, "tpot_s": 0.1},
        "serving": {"admission": "open"},
    }


def question(text: str, **more: object) -> dict[str, object]:
    return {"model": "demo", "messages": [{"role": "user", "content": text}], **more}


async def stream_one(router: narwhal.Router) -> None:
    """A chat as it is generated, with five seconds for all of it."""
    with trio.fail_after(5):
        async with router.stream(question("Why is the sea salty?")) as events:
            async for event in events:
                for choice in event["choices"]:
                    print(choice["delta"].get("content") or "", end="", flush=True)
    print()


async def run_out_of_time(router: narwhal.Router) -> None:
    """A scope of ours ends a request; when it has been left, the engines are free again."""
    with trio.move_on_after(0.5) as limit:
        await router.complete(question("And the lakes?", max_tokens=2000))
    seats = sum(sum(engine.seats.values()) for engine in router.live_state().engines)
    print(f"out of time: {limit.cancelled_caught}, seats taken: {seats}")


async def see_a_failure(router: narwhal.Router) -> None:
    try:
        await router.complete(question("fault=decode:tokens(3);rst"))
    except narwhal.RequestFailed as failed:
        print(f"failed: {failed.code}, {failed.outcome.terminal}: {failed}")


async def serve_http(router: narwhal.Router) -> None:
    """The same router for other people's clients, until it has answered one of them."""
    async with trio.open_nursery() as nursery:
        server = data_server(router)
        listeners = await open_listeners("127.0.0.1", 0)
        host, port = listeners[0].address
        await nursery.start(server.serve, listeners)
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
            answer = await client.post("/v1/chat/completions", json=question("Hello", max_tokens=8))
            print(f"over HTTP: {answer.status_code}, {answer.json()['usage']}")
        print(f"all served: {await router.drain(10)}")
        await server.drain(1)


async def main() -> None:
    engines = EmulatedFleet([EngineSettings(iid=iid, model="demo") for iid in ROLES])
    listeners = [await open_listeners("127.0.0.1", 0) for _ in ROLES]
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(engines.serve, listeners, reopen=open_listeners))
        fleet = narwhal.parse_fleet(fleet_document(engines.urls), name="embed.py", environ={})
        async with narwhal.open_router(fleet) as router:
            await stream_one(router)
            answer = await router.complete(question("And the rivers?", max_tokens=6))
            print(answer["choices"][0]["message"]["content"], answer["usage"])
            await run_out_of_time(router)
            await see_a_failure(router)
            await serve_http(router)
        nursery.cancel_scope.cancel(reason="that was all")


if __name__ == "__main__":
    trio.run(main)
