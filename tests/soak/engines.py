"""The engines of a soak: an emulated fleet that writes down every leg as it ends.

    python tests/soak/engines.py --engines 6 --legs legs.jsonl

Prints a line with the address of each engine. A leg is one JSON line: the id that the router gave
it, the engine, the kind of leg, how it ended, and when it began and ended, in Unix time. A line
`{"at": ..., "late": ...}` says that the engines themselves were late by so many seconds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import secrets
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, cast

import trio

from narwhal.emulator import EmulatedFleet, EngineSettings, TimeModel
from narwhal.net import open_listeners

if TYPE_CHECKING:
    from narwhal.emulator.stats import Record

TICK_S = 0.1
WRITE_EVERY_TICKS = 5
LATE_S = 0.05
"""What an event loop at work is late by; more says that the machine had no time for it."""
LEASE_S = 10.0
"""Longer than any decode of the soak waits for its seat."""


class Legs(list["Record"]):
    """The legs that are open or not written yet: what it holds stays small."""

    def write_ended(self, file: TextIO, epoch: float) -> None:
        ended = [record for record in self if record.ended is not None]
        self[:] = [record for record in self if record.ended is None]
        for record in ended:
            row = {
                "id": record.request_id,
                "engine": record.engine,
                "leg": record.leg.value,
                "outcome": record.outcome.value,
                "began": epoch + record.began,
                "ended": epoch + cast("float", record.ended),
            }
            file.write(json.dumps(row) + "\n")
        file.flush()


async def serve(engines: int, path: Path) -> None:
    epoch = time.time() - trio.current_time()
    settings = [
        EngineSettings(
            iid=f"e{number}",
            model="emulated",
            lease_s=LEASE_S,
            noise=0.1,
            time=TimeModel(prefill=(2e-9, 5e-5, 0.005), handoff=(0.002, 2e-6)).faster(2.0),
        )
        for number in range(engines)
    ]
    fleet = EmulatedFleet(settings, seed=secrets.randbits(64), epoch=epoch)
    kept = []
    for engine in fleet.engines:
        legs = Legs()
        engine.stats.records = legs
        kept.append(legs)
    listeners = [await open_listeners("127.0.0.1", 0) for _ in settings]
    with path.open("w", encoding="utf-8") as file:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(fleet.serve, listeners, reopen=open_listeners))
            for iid, url in fleet.urls.items():
                print(f"{iid} {url}", flush=True)
            for tick in itertools.count():
                due = trio.current_time() + TICK_S
                await trio.sleep_until(due)
                late = trio.current_time() - due
                if late > LATE_S:
                    file.write(json.dumps({"at": epoch + due, "late": late}) + "\n")
                if tick % WRITE_EVERY_TICKS == 0:
                    for legs in kept:
                        legs.write_ended(file, epoch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=6)
    parser.add_argument("--legs", type=Path, required=True)
    arguments = parser.parse_args()
    trio.run(serve, arguments.engines, arguments.legs)


if __name__ == "__main__":
    main()
