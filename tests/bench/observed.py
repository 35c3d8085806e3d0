"""The services of configs/compose.yml without containers: does every panel of the dashboard show
something, and does every rule evaluate? `python tests/bench/observed.py`

Runs the commands of `engines` and `router` as they stand in the compose file, with addresses on
loopback instead of service names, and a real Prometheus on its own configuration. Sends a mixed
load with faults for a minute and a half, and then asks Prometheus for every query of the dashboard.
Needs `prometheus` on the PATH. Exits with 1 for a target that is down, a rule that fails, or a
panel that is empty and not known to be.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import trio
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "soak"))
sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))

from monitoring_files import CONFIGS, PROMETHEUS, panel_queries
from visits import Visitors

RATE = 15.0
ENGINES, ROUTER, METRICS = 19101, 19000, 19090
FAULTS = ("decode:rst*30", "metrics:status(500)*3", "prefill:status(500)*5")
# What a fleet that is served for a minute, with admission open, has nothing to show of. The
# patterns are of the dashboard's queries: its title, and the letter of the query.
EMPTY = {
    r"Refusals, by cause .": "admission is open",
    r"Actual over projected TTFT .": "admission is open: nothing is projected",
    r"Waits to be admitted A": "nobody had to wait",
    r"Waits for a seat on an engine A": "nobody had to wait",
    r"Moves A": "roles did not change",
    r"Changes of state, restarts B": "no engine was restarted",
    r"Engines out of service A": "all were in service at the end",
    r"Clients turned away A": "the compose file sets no keys",
    r"Limits on single clients A": "no client went beyond one",
    r"Failures in a row A": "the last legs of all went well",
}


def free(text: str) -> str:
    """The compose file's addresses, on loopback."""
    text = re.sub(r"http://engines:91(\d\d)", rf"http://127.0.0.1:{ENGINES // 100}\1", text)
    text = text.replace("router:8000", f"127.0.0.1:{ROUTER}").replace("0.0.0.0", "127.0.0.1")
    return text.replace("base-port=9101", f"base-port={ENGINES}")


def start(stack: ExitStack, folder: Path, *command: str) -> None:
    log = stack.enter_context((folder / f"{Path(command[-1]).name[:9]}.log").open("wb"))
    process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ)  # noqa: S603

    def end() -> None:
        process.terminate()
        process.wait()

    stack.callback(end)


def start_all(stack: ExitStack, folder: Path) -> None:
    services = yaml.safe_load((CONFIGS / "compose.yml").read_text())["services"]
    fleet = free((CONFIGS / "compose-fleet.json").read_text())
    (folder / "fleet.json").write_text(fleet.replace("/var/lib/narwhal", str(folder)))
    for name in ("engines", "router"):
        words = [free(word) for word in services[name]["command"]]
        words = [word.replace("/etc/narwhal", str(folder)) for word in words]
        words = [word.replace("/var/lib/narwhal", str(folder)) for word in words]
        more = [f"--port={ROUTER}"] if name == "router" else []
        start(stack, folder, sys.executable, "-m", "narwhal", *words, *more)
    for path in PROMETHEUS.glob("*.yml"):
        text = free(path.read_text())
        text = re.sub(r"(scrape|evaluation)_interval: \d+s", r"\1_interval: 1s", text)
        (folder / path.name).write_text(text)
    start(
        stack, folder, str(shutil.which("prometheus")),
        f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{METRICS}",
    )  # fmt: skip


async def wait_for(http: httpx.AsyncClient, url: str) -> None:
    with trio.fail_after(60):
        while True:
            try:
                if (await http.get(url)).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await trio.sleep(0.2)


async def load(http: httpx.AsyncClient, seconds: float) -> None:
    rng = random.Random(1)
    visitors = Visitors("127.0.0.1", ROUTER, rng, model="demo")
    async with trio.open_nursery() as crowd:
        with trio.move_on_after(seconds):
            for turn in range(10_000):
                await trio.sleep(rng.expovariate(RATE))
                crowd.start_soon(visitors.one)
                if turn % 200 == 50:
                    fault = rng.choice(FAULTS)
                    url = f"http://127.0.0.1:{ENGINES + rng.randrange(4)}/emulator/fault"
                    await http.post(url, json={"fault": fault})


def query(expression: str) -> str:
    """As Grafana sends it with everything chosen."""
    plain = re.sub(r"\$(job|instance|engine)", ".+", expression)
    return plain.replace("$__rate_interval", "90s")


async def ask(http: httpx.AsyncClient, path: str, **params: str) -> Any:
    answer = await http.get(f"http://127.0.0.1:{METRICS}/api/v1/{path}", params=params)
    document = answer.json()
    assert document["status"] == "success", document
    return document["data"]


async def look(http: httpx.AsyncClient) -> list[str]:
    wrong = []
    for target in (await ask(http, "targets"))["activeTargets"]:
        print(f"target {target['scrapeUrl']}: {target['health']}, {target['lastScrapeDuration']} s")
        wrong += [] if target["health"] == "up" else [f"{target['scrapeUrl']} is not up"]
    rules = [rule for group in (await ask(http, "rules"))["groups"] for rule in group["rules"]]
    ill = [rule["name"] for rule in rules if rule["health"] != "ok"]
    wrong += [f"the rule {name} does not evaluate" for name in ill]
    firing = [rule["name"] for rule in rules if rule.get("state") == "firing"]
    print(f"{len(rules)} rules evaluate; alerts that fire: {', '.join(firing) or 'none'}")
    shown = empty = 0
    for panel in panel_queries():
        found = (await ask(http, "query", query=query(panel.expression)))["result"]
        numbers = [each for each in found if each["value"][1] != "NaN"]
        shown += bool(numbers)
        if numbers:
            continue
        empty += 1
        why = next((why for name, why in EMPTY.items() if re.fullmatch(name, panel.where)), None)
        print(f"empty: {panel.where}: {why or 'NOT KNOWN TO BE'}")
        wrong += [] if why else [f"{panel.where} shows nothing: {panel.expression}"]
    print(f"{shown} queries of the dashboard show something, {empty} nothing")
    return wrong


async def observe(seconds: float) -> list[str]:
    async with httpx.AsyncClient(timeout=20) as http:
        await wait_for(http, f"http://127.0.0.1:{ROUTER}/ready")
        await wait_for(http, f"http://127.0.0.1:{METRICS}/-/ready")
        await load(http, seconds)
        return await look(http)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=90.0)
    arguments = parser.parse_args()
    if shutil.which("prometheus") is None:
        sys.exit("there is no prometheus on the PATH")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        start_all(stack, folder)
        wrong = trio.run(observe, arguments.seconds)
    print(json.dumps({"wrong": wrong}, indent=1))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
