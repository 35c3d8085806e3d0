"""What a scrape of a large fleet takes: the page made, without the connection it goes over.

python tests/bench/scrape.py --engines 64
"""

from __future__ import annotations

import argparse
import statistics
import time

import trio

from narwhal.cli.serve_command import calm_the_collector
from narwhal.config import FleetConfig, parse_fleet
from narwhal.router import Router

TIMES = 100


def fleet(engines: int) -> FleetConfig:
    document = {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": "m",
        "engines": [
            {
                "iid": f"n{n}",
                "url": f"http://10.0.0.{n + 1}:8000",
                "role": "prefill" if n < engines // 2 else "decode",
            }
            for n in range(engines)
        ],
        "slo": {"ttft_s": 2.0, "tpot_s": 0.1},
        "serving": {"admission": "open"},
    }
    return parse_fleet(document, name="fleet", environ={})


async def measure(engines: int) -> None:
    router = Router(fleet(engines), wall_clock=time.time, environ={})
    calm_the_collector()
    times = []
    for _ in range(TIMES):
        began = time.perf_counter()
        page = router.telemetry.metrics.render()
        times.append((time.perf_counter() - began) * 1000)
    series = sum(not line.startswith(b"#") for line in page.splitlines())
    print(f"{engines} engines: {series} series, {len(page) / 1000:.0f} kB")
    print(
        f"ms: least {min(times):.1f}, median {statistics.median(times):.1f}, most {max(times):.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=64)
    trio.run(measure, parser.parse_args().engines)


if __name__ == "__main__":
    main()
