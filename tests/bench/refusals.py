"""What refusing costs the router, and whether others notice. `python tests/bench/refusals.py`.

Starts `narwhal-trio emulate` and `narwhal-trio serve`, each in a process of its own on loopback,
with predictive admission and a profile store made for it. First it compares the router's CPU time,
kernel included, for the same short request served and refused, in batches that take turns; then
the first-token times of paced streams without and with refusals beside them. Both with tokens
counted by engines and without. Takes a minute; every wait is bounded.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from narwhal.emulator import text_of

from processes import Command

PATIENCE_S = 120.0
CONNECTIONS = 8
TTFT_S = 10.0
SECONDS_A_TOKEN = 0.01
"""Of a prompt, by the profiles: 10.9 s for one of these requests behind what `held` sends."""
SHORT = {"model": "emulated", "prompt": text_of(150, "short"), "max_tokens": 4}
LONG = {"model": "emulated", "prompt": text_of(940, "long"), "max_tokens": 1}
ENDLESS = {"model": "emulated", "prompt": "on", "max_tokens": 5000, "stream": True}
TOO_MUCH = SHORT | {"max_tokens": 900_000}
"""More than a decode engine holds: refused whatever the load is."""


def store(iids: list[str]) -> dict[str, Any]:
    rows = [
        {
            "iid": iid,
            "ttft_a": 0.0,
            "ttft_b": SECONDS_A_TOKEN,
            "ttft_c": 0.0,
            "tpot_intercept": 1e-3,
            "tpot_slope": 1e-9,
            "kv_capacity_tokens": 500_000,
            "decode_fit_mape": 0.01,
            "decode_cv_mape": 0.01,
        }
        for iid in iids
    ]
    return {"schema": "narwhal.profiles", "schema_version": 1, "profiles": rows}


def write_files(folder: Path, urls: list[str], *, tokenize: bool) -> Path:
    roles = ("prefill", "prefill", "decode", "decode")
    iids = ["p0", "p1", "d0", "d1"]
    (folder / "profiles.json").write_text(json.dumps(store(iids)))
    document = {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": "emulated",
        "engines": [
            {"iid": iid, "url": url, "role": role}
            for iid, url, role in zip(iids, urls, roles, strict=True)
        ],
        "slo": {"ttft_s": TTFT_S, "tpot_s": 0.1},
        "serving": {"admission": "predictive"},
        "engine": {"tokenize": tokenize, "first_token_timeout_s": 60.0},
        "profiles": {"path": str(folder / "profiles.json")},
    }
    path = folder / "fleet.json"
    path.write_text(json.dumps(document))
    return path


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, user and kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Connection:
    """One HTTP connection to `url`, kept alive; no more of HTTP than the router speaks."""

    def __init__(self, url: str) -> None:
        self.host, _, port = url.removeprefix("http://").partition(":")
        self.port = int(port)
        self.stream: trio.SocketStream

    async def open(self) -> Connection:
        self.stream = await trio.open_tcp_stream(self.host, self.port)
        return self

    async def send(self, body: Any, path: str = "/v1/completions") -> None:
        raw = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        await self.stream.send_all(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)

    async def ask(self, body: Any, path: str = "/v1/completions") -> tuple[int, bytes]:
        """Ask and read a whole answer that has a content-length."""
        await self.send(body, path)
        data = b""
        while b"\r\n\r\n" not in data:
            data += await self.received()
        head, _, rest = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(maxsplit=1)[0])
        while len(rest) < length:
            rest += await self.received()
        return int(head.split(maxsplit=2)[1]), rest

    async def first_token_s(self, body: Any) -> float:
        """Ask for a stream, and read on to its end."""
        start = trio.current_time()
        await self.send(body | {"stream": True})
        data, first = b"", 0.0
        while not data.endswith(b"0\r\n\r\n"):
            data += await self.received()
            if not first and b'"text"' in data:
                first = trio.current_time() - start
        assert first, data
        return first

    async def received(self) -> bytes:
        data = bytes(await self.stream.receive_some())
        assert data, "the router closed the connection"
        return data


async def order_faults(urls: list[str], *faults: str) -> None:
    for url, fault in zip(urls, faults, strict=True):
        connection = await Connection(url).open()
        status, answer = await connection.ask({"fault": fault}, "/emulator/fault")
        assert status == 200, answer
        await connection.stream.aclose()


@asynccontextmanager
async def held(router: str, urls: list[str]) -> AsyncIterator[None]:
    """Prefills that go on for long on both prefill engines, and streams on the others."""
    connections = [await Connection(router).open() for _ in range(4)]
    await order_faults(urls[2:], *["decode:pace(0.5)*1"] * 2)
    for connection in connections[:2]:
        await connection.send(ENDLESS)
        await connection.received()
        await trio.sleep(0.05)
    await order_faults(urls[:2], *["prefill:wait(30)*1"] * 2)
    for connection in connections[2:]:
        await connection.send(LONG)
    await trio.sleep(0.05)
    try:
        yield
    finally:
        for connection in connections:
            await connection.stream.aclose()
        await order_faults(urls, *[""] * 4)
        await trio.sleep(0.1)


async def batch(router: str, body: Any, count: int) -> Counter[str]:
    """Ask `count` times over a few connections; how often which answer came."""
    codes: Counter[str] = Counter()

    async def some(connection: Connection) -> None:
        for _ in range(count // CONNECTIONS):
            status, answer = await connection.ask(body)
            codes["ok" if status == 200 else json.loads(answer)["error"]["code"]] += 1

    connections = [await Connection(router).open() for _ in range(CONNECTIONS)]
    async with trio.open_nursery() as nursery:
        for connection in connections:
            nursery.start_soon(some, connection)
    for connection in connections:
        await connection.stream.aclose()
    return codes


async def costs(router: str, pid: int, urls: list[str], *, rounds: int, count: int) -> None:
    """Print the CPU time of a request by how it ended."""
    spent: dict[str, list[float]] = {"served": [], "refused: backlog": [], "refused: never": []}

    async def measure(name: str, body: Any, code: str) -> None:
        before = cpu_s(pid)
        codes = await batch(router, body, count)
        used = cpu_s(pid) - before
        assert codes == {code: count // CONNECTIONS * CONNECTIONS}, codes
        spent[name].append(used / codes[code])

    await batch(router, SHORT, count)
    for _ in range(rounds):
        await measure("served", SHORT, "ok")
        async with held(router, urls):
            await measure("refused: backlog", SHORT, "projected_ttft")
        await measure("refused: never", TOO_MUCH, "answer_too_long")
    served = statistics.mean(spent["served"])
    for name, seconds in spent.items():
        mean, error = statistics.mean(seconds), statistics.stdev(seconds) / rounds**0.5
        share = "" if name == "served" else f"  {mean / served:4.0%} of a served one"
        print(f"  {name:18} {mean * 1e6:4.0f} us (+- {error * 1e6:.0f}){share}")


async def first_tokens(router: str, *, streams: int, burst: int) -> list[float]:
    """Times of `streams` streams, 20 ms apart, with `burst` refusals every half second."""
    times: list[float] = []

    async def one() -> None:
        connection = await Connection(router).open()
        times.append(await connection.first_token_s(SHORT))
        await connection.stream.aclose()

    async with trio.open_nursery() as nursery:
        for n in range(streams):
            if burst and n % 25 == 10:
                nursery.start_soon(batch, router, TOO_MUCH, burst)
            nursery.start_soon(one)
            await trio.sleep(0.02)
    return sorted(times)


async def run(router: str, pid: int, urls: list[str], arguments: argparse.Namespace) -> None:
    with trio.fail_after(PATIENCE_S):
        await costs(router, pid, urls, rounds=arguments.rounds, count=arguments.count)
        for burst in (0, arguments.burst, 0, arguments.burst):
            times = await first_tokens(router, streams=200, burst=burst)
            shown = ", ".join(
                f"{name} {times[round(share * (len(times) - 1))] * 1e3:.1f}"
                for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
            )
            print(f"  first token, ms, bursts of {burst:3}: {shown}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="batches of each kind")
    parser.add_argument("--count", type=int, default=400, help="requests of a batch")
    parser.add_argument("--burst", type=int, default=200, help="refusals at a time")
    arguments = parser.parse_args()
    for tokenize in (True, False):
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            engines = stack.enter_context(
                Command("emulate", "--engines", "4", "--base-port", "0", "--prefill", "0,0,0",
                        "--decode", "0,0,0")
            )  # fmt: skip
            urls = [engines.url() for _ in range(4)]
            fleet = write_files(folder, urls, tokenize=tokenize)
            router = stack.enter_context(Command("serve", "--fleet", str(fleet), "--port", "0"))
            print(f"engine.tokenize {str(tokenize).lower()}")
            trio.run(run, router.url(), router.process.pid, urls, arguments)


if __name__ == "__main__":
    main()
