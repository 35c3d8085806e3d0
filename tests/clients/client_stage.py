"""What the official clients are tried on: emulated engines and the router, as processes."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from processes import PATIENCE_S, Command, write_fleet

FAST = ("--base-port", "0", "--decode", "0.001,0,0", "--prefill", "0,0,0")


@attrs.frozen
class Stage:
    """The router's address and its engines'; the first of these prefills."""

    url: str
    engines: list[str]

    def state(self) -> Any:
        """The router's state document."""
        return fetch(f"{self.url}/narwhal/state")

    def running(self) -> int:
        """Requests that any engine works on, and KV caches that wait for a decoder."""
        stats = [fetch(f"{engine}/emulator/stats") for engine in self.engines]
        return sum(each["running"] + each["waiting"] + each["staged"] for each in stats)

    def fault(self, engine: int, *faults: str) -> None:
        """Have an engine fail for everybody, or without `faults` no more."""
        fetch(f"{self.engines[engine]}/emulator/fault", {"fault": list(faults)})

    def ended(self, code: str) -> bool:
        """Whether a request has ended with this code of late."""
        return any(each["code"] == code for each in self.state()["recent"])


def fetch(url: str, body: object = None) -> Any:
    """The JSON that is there; with a body, what a POST of it answers."""
    data = None if body is None else json.dumps(body).encode()
    ask = urllib.request.Request(url, data, {"content-type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(ask, timeout=PATIENCE_S) as answer:  # noqa: S310 - loopback
        return json.load(answer)


def until(true: Callable[[], bool]) -> None:
    """Ask again and again; each question is a request over HTTP, and takes its time."""
    give_up = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < give_up, "it never came to be"


@contextmanager
def open_stage(folder: Path, *emulate: str, engines: int = 2, **serving: Any) -> Iterator[Stage]:
    """Run engines and a router, in `folder`; on leaving, both have to end well."""
    with Command("emulate", "--engines", str(engines), *(emulate or FAST)) as fleet:
        urls = [fleet.url() for _ in range(engines)]
        path = write_fleet(folder / "fleet.json", urls, **serving)
        with Command("serve", "--fleet", str(path), "--port", "0", cwd=folder) as router:
            yield Stage(router.url(), urls)
            router.signal(signal.SIGTERM)
            code, _, err = router.end()
            assert (code, err.count("Traceback")) == (0, 0), err
        fleet.signal(signal.SIGTERM)
        assert fleet.end()[0] == 0
