"""A router inside a Trio program: two questions at once, one of them with a deadline of its own.

python docs/examples/embed.py fleet.json
"""

import os
import sys

import trio

from narwhal.app import open_router
from narwhal.config import load_fleet
from narwhal.model import RequestFailed
from narwhal.router import Router


async def ask(router: Router, question: str) -> None:
    request = {
        "model": router.config.model,
        "messages": [{"role": "user", "content": question}],
    }
    try:
        async with router.stream(request) as events:
            async for event in events:
                for choice in event["choices"]:
                    print(choice["delta"].get("content") or "", end="", flush=True)
    except RequestFailed as failed:
        print(f"\n{failed.code}: {failed}")


async def main(fleet_file: str) -> None:
    fleet = load_fleet(fleet_file, environ=os.environ)
    async with open_router(fleet) as router, trio.open_nursery() as nursery:
        nursery.start_soon(ask, router, "Why is the sea salty?")
        # Two seconds for this one, queueing and retries included. When they are over, its engine
        # connections, seats and reservations are free again before the next line runs.
        with trio.move_on_after(2) as limit:
            await ask(router, "And the lakes?")
        if limit.cancelled_caught:
            print("\n(no more time for the lakes)")


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
