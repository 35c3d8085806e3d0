"""Half an hour of everything that goes on around a router, in real time, on real sockets.

    python tests/soak/soak.py --minutes 30 --report soak.json

Starts emulated engines and `narwhal-trio serve`, each in a process of its own on loopback. Clients
of every habit come and go; engines fail by every kind of fault, restart, refuse, hang and are slow.
Samples what the router holds, and checks at the end that nothing is left, that every request had
one end, and that nothing grew: the checks are in `judging.py`. Exits with 1 if one fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import httpx
import trio

sys.path.insert(0, str(Path(__file__).parent))

from judging import Evidence, judge
from sampling import Sample, sample
from visits import Visitors

ENGINES = 6
SAMPLE_EVERY_S = 5.0
SCRAPE_EVERY_S = 15.0
INCIDENT_EVERY_S = 8.0
MOST_CLIENTS = 150
RUSHES = 5
MOST_SHOWN = 20
REST_WITHIN_S = 90.0
"""The longest request, the lease of the last handoff, and the expiry of idle connections."""

# What engines do to whoever comes, for so many legs.
ENGINE_FAULTS = (
    "decode:rst*3",
    "decode:tokens(3);rst*3",
    "decode:hang*2",
    "prefill:hang*2",
    "prefill:status(500)*4",
    "any:status(503)*10",
    "decode:status(500)*4",
    "decode:pace(0.05)*10",
    "health:hang*2",
    "health:status(500)*3",
    "tokenize:hang*5",
    "metrics:hang*2",
    "version:status(500)*2",
    "onreuse;rst*5",
)


def fleet_file(folder: Path, urls: dict[str, str]) -> Path:
    half = len(urls) // 2
    profile = {
        "ttft_a": 1e-9, "ttft_b": 2.5e-5, "ttft_c": 0.0025, "tpot_intercept": 6e-3,
        "tpot_slope": 1e-7, "tpot_request_slope": 1e-4, "kv_capacity_tokens": 500_000,
        "decode_fit_mape": 0.01, "decode_cv_mape": 0.01,
    }  # fmt: skip
    store = {
        "schema": "narwhal.profiles",
        "schema_version": 1,
        "profiles": [{"iid": iid} | profile for iid in urls],
    }
    (folder / "profiles.json").write_text(json.dumps(store))
    document = {
        "schema": "narwhal.fleet",
        "schema_version": 1,
        "model": "emulated",
        "engines": [
            {"iid": iid, "url": url, "role": "prefill" if n < half else "decode"}
            for n, (iid, url) in enumerate(urls.items())
        ],
        "slo": {"ttft_s": 2.0, "tpot_s": 0.05},
        "serving": {
            "admission": "predictive",
            "max_connections": 64,
            "queue_capacity": 64,
            "queue_timeout_s": 5.0,
            "request_timeout_s": 20.0,
            "prefill_timeout_s": 4.0,
            "handoff_timeout_s": 8.0,
            "prefill_concurrency": 16,
            "decode_concurrency": 24,
            "max_attempts": 2,
            "max_request_bytes": 90_000,
            "graceful_timeout_s": 5.0,
        },
        "engine": {
            "kv_lease_s": 10.0,
            "first_token_timeout_s": 3.0,
            "decode_read_timeout_s": 3.0,
            "tokenize_timeout_s": 0.5,
        },
        "profiles": {"path": str(folder / "profiles.json")},
        "recovery": {"state_path": str(folder / "state.json")},
    }
    path = folder / "fleet.json"
    path.write_text(json.dumps(document))
    return path


class Soak:
    """One soak: its processes, its clients, its engines' troubles, and what is seen of it all."""

    def __init__(self, folder: Path, *, minutes: float, rate: float, seed: int) -> None:
        self.folder = folder
        self.seconds = minutes * 60
        self.warm_up_s = max(min(300.0, self.seconds / 3), 1.0)
        self.rate = rate
        self.rng = random.Random(seed)
        self.samples: list[Sample] = []
        self.incidents: Counter[str] = Counter()
        self.urls: dict[str, str] = {}
        self.router: subprocess.Popen[bytes]
        self.url = ""
        self.visitors: Visitors
        self.begun = 0.0

    # Processes

    def start(self, stack: ExitStack) -> None:
        here = Path(__file__).parent
        legs = self.folder / "legs.jsonl"
        engines = self._run(
            stack, str(here / "engines.py"), f"--engines={ENGINES}", f"--legs={legs}"
        )
        assert engines.stdout is not None
        for _ in range(ENGINES):
            iid, url = engines.stdout.readline().decode().split()
            self.urls[iid] = url
        fleet = fleet_file(self.folder, self.urls)
        journal = self.folder / "requests.jsonl"
        journal.unlink(missing_ok=True)  # it would be appended to
        self.router = self._run(
            stack,
            *("-m", "narwhal", "serve", f"--fleet={fleet}", "--port=0", f"--journal={journal}"),
            log=self.folder / "router.log",
        )
        assert self.router.stdout is not None
        self.url = next(
            word for word in self.router.stdout.readline().decode().split() if "http" in word
        )
        host, _, port = self.url.removeprefix("http://").partition(":")
        self.visitors = Visitors(host, int(port), self.rng)

    @staticmethod
    def _run(stack: ExitStack, *command: str, log: Path | None = None) -> subprocess.Popen[bytes]:
        errors = None if log is None else stack.enter_context(log.open("wb"))
        process = subprocess.Popen(  # noqa: S603 - our own programs
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )

        def end() -> None:
            process.kill()
            process.communicate()

        stack.callback(end)
        return process

    def _sample(self) -> Sample:
        at = trio.current_time() - self.begun
        return sample(self.router.pid, at, ticks=os.sysconf("SC_CLK_TCK"))

    # The load

    async def load(self) -> None:
        """Clients and troubles for as long as was asked for; then wait for the clients."""
        self.begun = trio.current_time()
        await self._rush()
        async with trio.open_nursery() as crowd:
            with trio.move_on_after(self.seconds):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._troubles)
                    nursery.start_soon(self._watch)
                    nursery.start_soon(self._scrape)
                    nursery.start_soon(self._say)
                    while True:
                        await trio.sleep(self.rng.expovariate(self.rate))
                        if self.visitors.here < MOST_CLIENTS:
                            crowd.start_soon(self.visitors.one)

    async def _rush(self) -> None:
        """As much at once as the router takes, a few times over.

        What a process has had once it does not give back. So without this, memory would grow for
        as long as each crowd is larger than the last, and that would be taken for a leak.
        """
        for _ in range(RUSHES):
            async with trio.open_nursery() as nursery:
                for _ in range(MOST_CLIENTS):
                    nursery.start_soon(self.visitors.large)

    async def _watch(self) -> None:
        while True:
            self.samples.append(self._sample())
            await trio.sleep(SAMPLE_EVERY_S)

    async def _say(self) -> None:
        while True:
            await trio.sleep(60)
            last = self.samples[-1]
            print(
                f"{last.at / 60:5.1f} min: {last.rss_kib / 1024:.1f} MiB, {last.fds} files, "
                f"{self.visitors.habits.total()} clients, {self.incidents.total()} incidents",
                flush=True,
            )

    async def _scrape(self) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=10) as http:
            while True:
                await trio.sleep(SCRAPE_EVERY_S)
                (await http.get("/metrics")).raise_for_status()

    async def _troubles(self) -> None:
        async with httpx.AsyncClient(timeout=10) as http, trio.open_nursery() as nursery:
            while True:
                await trio.sleep(self.rng.expovariate(1 / INCIDENT_EVERY_S))
                nursery.start_soon(self._incident, http)

    async def _incident(self, http: httpx.AsyncClient) -> None:
        rng = self.rng
        iid = rng.choice(list(self.urls))
        kind = rng.choices(
            ("fault", "refuses", "another process", "dies", "slow"), (10, 2, 2, 1, 2)
        )[0]
        self.incidents[kind] += 1
        if kind == "fault":
            await self._order(http, "fault", engine=iid, fault=rng.choice(ENGINE_FAULTS))
        elif kind == "refuses":
            await self._order(http, "down", engine=iid, seconds=rng.uniform(0.1, 5.0))
        elif kind == "another process":
            await self._order(http, "down", engine=iid, seconds=rng.uniform(0.5, 5.0), restart=True)
        elif kind == "dies":
            await self._order(http, "fault", engine=iid, fault="any:die*1")
            await trio.sleep(rng.uniform(2.0, 8.0))
            await self._order(http, "restart", engine=iid)
        else:
            usual = [0.006, 1e-4, 1e-7]
            await self._order(http, "model", engine=iid, decode=[x * 8 for x in usual])
            await trio.sleep(rng.uniform(3.0, 15.0))
            await self._order(http, "model", engine=iid, decode=usual)

    async def _order(self, http: httpx.AsyncClient, name: str, **order: Any) -> None:
        """Through whichever engine answers: the one that it is for may be down."""
        urls = list(self.urls.values())
        self.rng.shuffle(urls)
        for url in urls:
            try:
                answer = await http.post(f"{url}/emulator/{name}", json=order)
            except httpx.TransportError:
                continue
            assert answer.status_code == 200, answer.text
            return

    # Rest

    async def rest(self) -> float | None:
        """Wait until router and engines hold nothing; how long that took, None: too long."""
        async with httpx.AsyncClient(timeout=10) as http:
            for iid in self.urls:
                await self._order(http, "fault", engine=iid, fault=[])
                await self._order(http, "restart", engine=iid)
            since = trio.current_time()
            with trio.move_on_after(REST_WITHIN_S):
                while not await self._is_at_rest(http):  # noqa: ASYNC110 - of other processes
                    await trio.sleep(0.5)
                return round(trio.current_time() - since, 1)
        return None

    async def _is_at_rest(self, http: httpx.AsyncClient) -> bool:
        state = (await http.get(f"{self.url}/narwhal/state")).json()
        requests = state["requests"]
        busy = requests["in_flight"] or requests["waiting"] or requests["retained"]
        for engine in state["engines"]:
            busy = busy or engine["orphan_tokens"] or engine["reserved_tokens"]
            busy = busy or any(engine["residents"].values())
        stats = await self._stats(http)
        return not busy and not any(s["inflight"] or s["used_blocks"] or s["staged"] for s in stats)

    async def _stats(self, http: httpx.AsyncClient) -> list[dict[str, Any]]:
        return [(await http.get(f"{url}/emulator/stats")).json() for url in self.urls.values()]

    # All of it

    async def run(self) -> Evidence:
        async with httpx.AsyncClient(base_url=self.url, timeout=10) as http:
            await http.get("/ready")
            rest_fds = self._sample().fds
            before = (await http.get("/metrics")).content
            await self.load()
            quiet_s = await self.rest()
            scrape = (await http.get("/metrics")).content
            state = (await http.get("/narwhal/state")).json()
            end_fds = self._sample().fds
            async with httpx.AsyncClient(timeout=10) as plain:
                engines = await self._stats(plain)
        self.router.send_signal(signal.SIGTERM)
        with trio.fail_after(30):
            await trio.to_thread.run_sync(self.router.wait, abandon_on_cancel=True)
        await trio.sleep(1.0)  # the engines write their legs every half second
        idle = sum(pool["idle"] for e in state["engines"] for pool in e["pools"].values())
        return Evidence(
            minutes=self.seconds / 60,
            warm_up_s=self.warm_up_s,
            samples=self.samples,
            rest_fds=rest_fds,
            end_fds=end_fds,
            idle_connections=idle,
            before=before,
            scrape=scrape,
            state=state,
            engines=engines,
            journal=self.folder / "requests.jsonl",
            legs=self.folder / "legs.jsonl",
            log=(self.folder / "router.log").read_text(),
            exit_code=self.router.returncode,
            seen=self.visitors.seen,
            habits=self.visitors.habits,
            incidents=self.incidents,
            forgotten=self.visitors.forgotten,
            quiet_s=quiet_s,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=20.0, help="clients a second")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="write the report here, as JSON")
    parser.add_argument("--keep", type=Path, help="keep journal, legs and log in this folder")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        soak = Soak(folder, minutes=arguments.minutes, rate=arguments.rate, seed=arguments.seed)
        soak.start(stack)
        evidence = trio.run(soak.run)
        rows = "".join(json.dumps(attrs.asdict(each)) + "\n" for each in evidence.samples)
        (folder / "samples.jsonl").write_text(rows)
        report, wrong = judge(evidence)
    text = json.dumps(report, indent=1)
    print(text)
    if arguments.report:
        arguments.report.write_text(text + "\n")
    for each in wrong[:MOST_SHOWN]:
        print(f"WRONG: {each}", file=sys.stderr)
    if len(wrong) > MOST_SHOWN:
        print(f"WRONG: and {len(wrong) - MOST_SHOWN} more", file=sys.stderr)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
