"""What a request and a token take of the router, in instructions.

Run as `python tests/bench/instructions.py`.

Starts `narwhal-trio emulate`, and `narwhal-trio serve` under Valgrind, on loopback, and counts the
instructions that the router's process executes, the kernel's left out. That depends on Python and
little else: figures of two versions of the router can be compared to a hundredth on a machine that
is busy with other things, where CPU times differ by a fifth from run to run. Needs Valgrind, with
the command `callgrind_control`. Takes a minute; every wait is bounded.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import trio

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from refusals import PATIENCE_S, SHORT, Connection, batch, write_files

from processes import Command

ONE_TOKEN = SHORT | {"max_tokens": 1}
WARM_UP = 160
TOKENS = 200
"""Of each stream: enough that what a stream costs by itself is not seen."""


class Counter:
    """Counts the instructions of a process under Callgrind."""

    def __init__(self, pid: int, out: Path) -> None:
        self._pid = pid
        self._out = out
        self._dumps = 0

    def count(self) -> int:
        """Instructions since the last call, or since the start."""
        command = ["callgrind_control", "--dump", str(self._pid)]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)  # noqa: S603 - no input of others
        self._dumps += 1
        text = self._out.with_name(f"{self._out.name}.{self._dumps}").read_text(errors="replace")
        found = re.search(r"^(?:totals|summary): (\d+)", text, re.MULTILINE)
        assert found, "Callgrind wrote no total"
        return int(found[1])


async def streams(router: str, count: int) -> None:
    """Read `count` streams of many tokens, one after the other."""
    connection = await Connection(router).open()
    for _ in range(count):
        await connection.first_token_s(ONE_TOKEN | {"max_tokens": TOKENS})
    await connection.stream.aclose()


async def measure(router: str, counter: Counter, requests: int) -> None:
    with trio.fail_after(PATIENCE_S):
        await batch(router, ONE_TOKEN, WARM_UP)
        await streams(router, 1)
        counter.count()
        await batch(router, ONE_TOKEN, requests)
        a_request = counter.count() / requests
        count = max(1, requests // 40)
        await streams(router, count)
        a_token = (counter.count() - count * a_request) / (count * TOKENS)
    print(f"a short request: {a_request / 1e3:.0f} thousand instructions")
    print(f"a streamed token: {a_token / 1e3:.1f} thousand instructions")


def quiet(path: Path) -> None:
    """Next to nothing is done by the clock: under Valgrind a second is short."""
    document: Any = json.loads(path.read_text())
    document["controller"] = {"monitor_interval_s": 60}
    document["recovery"] = {"health": {"window_s": 600}}
    document["serving"] = {"admission": "open"}
    path.write_text(json.dumps(document))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=400)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engines = stack.enter_context(
            Command("emulate", "--engines", "4", "--base-port", "0", "--prefill", "0,0,0",
                    "--decode", "0.01,0,0")
        )  # fmt: skip
        fleet = write_files(folder, [engines.url() for _ in range(4)], tokenize=True)
        quiet(fleet)
        out = folder / "instructions"
        valgrind = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={out}")
        serve = Command(
            "serve", "--fleet", str(fleet), "--port", "0",
            under=valgrind, errors=folder / "errors",
        )  # fmt: skip
        router = stack.enter_context(serve)
        url = router.url()
        trio.run(measure, url, Counter(router.process.pid, out), arguments.requests)


if __name__ == "__main__":
    main()
