"""The journal of a router that serves: rotation, a disk that is stuck, what was projected."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from narwhal import RequestFailed, Router, open_router
from narwhal.model import Role
from narwhal.telemetry import Journal, JournalFile, RequestRow
from narwhal.testing import MemoryFleet, TimeModel, fleet_config, open_fleet, run_seeded

ASK = {"model": "emulated", "prompt": "hello", "max_tokens": 2}
# A write goes to a thread, and a clock that jumps does not wait for threads.
SOON = 10_000


def opened(fleet: MemoryFleet, journal: Path) -> open_router:
    return open_router(
        fleet.config,
        environ=fleet.environ,
        connect=fleet.connect,
        wall_clock=trio.current_time,
        journal_file=JournalFile(journal),
    )


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def until(true: Callable[[], object]) -> None:
    for _ in range(SOON):
        if true():
            return
        await trio.sleep(0.25)
        await trio.to_thread.run_sync(lambda: None)
    raise AssertionError("it never came to that")


def test_after_a_rotation_a_file_says_what_its_rows_are_measured_by(tmp_path: Path) -> None:
    path, old = tmp_path / "journal", tmp_path / "journal.1"

    async def main() -> None:
        async with open_fleet() as fleet, opened(fleet, path) as router:
            await router.complete(ASK)
            await until(lambda: path.exists() and b'"request"' in path.read_bytes())
            router.core.move("p0", Role.DECODE)
            path.rename(old)
            router.reopen_journal()
            await until(path.exists)
            await router.complete(ASK)

    run_seeded(main)
    before = rows(old)
    after = [
        row for row in rows(path) if row["event"] not in ("role", "router")
    ]  # the monitor puts it right
    assert [row["event"] for row in before] == ["start", "request"]
    assert [row["event"] for row in after] == ["rotated", "request", "stop"]
    assert after[0]["slo"] == before[0]["slo"]
    assert (after[0]["schema"], after[0]["model"]) == (1, "emulated")
    assert [engine["role"] for engine in before[0]["engines"]] == ["prefill", "decode"]
    assert [engine["role"] for engine in after[0]["engines"]] == ["decode", "decode"]
    assert after[-1]["dropped"] == 0


def test_a_rotation_at_the_very_end_is_made_good(tmp_path: Path) -> None:
    path, old = tmp_path / "journal", tmp_path / "journal.1"

    async def main() -> None:
        async with open_fleet() as fleet, opened(fleet, path) as router:
            await until(path.exists)
            path.rename(old)
            router.reopen_journal()

    run_seeded(main)
    assert [row["event"] for row in rows(path)] == ["rotated", "router", "stop"]


def test_a_file_that_was_removed_is_begun_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "journal"
    lost: list[int] = []

    async def main() -> None:
        async with open_fleet() as fleet, opened(fleet, path) as router:
            await router.complete(ASK)
            await until(lambda: path.exists() and b'"request"' in path.read_bytes())
            path.unlink()
            await router.complete(ASK)
            await until(lambda: path.exists() and b'"request"' in path.read_bytes())
            path.unlink()
            lost.append(router.telemetry.totals().journal_dropped)

    run_seeded(main)
    assert [row["event"] for row in rows(path)] == ["rotated", "router", "stop"]
    assert rows(path)[-1]["dropped"] == lost[0] == 0
    assert caplog.text.count("was removed") == 2


def test_without_a_journal_there_is_nothing_to_reopen() -> None:
    async def main() -> None:
        async with open_fleet() as fleet, fleet.open_router() as router:
            router.reopen_journal()
            await router.complete(ASK)

    run_seeded(main)


def test_serving_does_not_wait_for_a_disk_that_is_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request is answered as ever, what does not fit is counted, the end comes in time."""
    monkeypatch.setattr("narwhal.router.journal._LAST_WRITE_S", 0.0)
    monkeypatch.setattr("narwhal.telemetry.facade.Journal", partial(Journal, capacity=4))
    stuck, go_on = threading.Event(), threading.Event()
    write = os.write

    def stalls(fd: int, data: bytes) -> int:
        stuck.set()
        go_on.wait()
        return write(fd, data)

    routers: list[Router] = []

    async def main() -> None:
        async with open_fleet() as fleet, opened(fleet, tmp_path / "journal") as router:
            routers.append(router)
            monkeypatch.setattr(os, "write", stalls)
            await until(stuck.is_set)
            for _ in range(20):
                took = trio.current_time()
                assert (await router.complete(ASK))["choices"]
                assert trio.current_time() - took < 1.0
            assert router.telemetry.totals().journal_dropped == 20 - 4

    try:
        run_seeded(main)
    finally:
        go_on.set()
    (router,) = routers
    # The start row whose write is stuck, those in the buffer, and what found no room: 16 of 20
    # requests, and that the router drains and stops.
    assert router.telemetry.totals().journal_dropped == 1 + 20 + 2


def test_a_row_says_what_time_between_tokens_was_projected() -> None:
    done: list[RequestRow] = []

    async def main() -> None:
        config = fleet_config(serving={"admission": "predictive"})
        time = TimeModel(prefill=(0.0, 0.001, 0.0), decode=(0.02, 0.0, 0.0))
        async with open_fleet(config, time=time) as fleet, fleet.open_router() as router:
            router.telemetry.listen(done.append)
            await router.complete(ASK | {"max_tokens": 8})

    run_seeded(main)
    (row,) = done
    assert row.projected_tpot_s == pytest.approx(0.02, rel=1e-3)
    assert row.projected_tpot_s == pytest.approx(row.tpot_s, rel=0.2)


def test_without_profiles_nothing_is_projected() -> None:
    done: list[RequestRow] = []

    async def main() -> None:
        async with open_fleet() as fleet, fleet.open_router() as router:
            router.telemetry.listen(done.append)
            await router.complete(ASK)

    run_seeded(main)
    assert [(row.projected_tpot_s, row.projected_ttft_s) for row in done] == [(None, None)]


def test_the_journal_says_when_the_router_drains_and_when_it_is_degraded(tmp_path: Path) -> None:
    path = tmp_path / "journal"

    async def main() -> None:
        async with open_fleet() as fleet, opened(fleet, path) as router:
            core = router.core
            for why in ("4 passes failed", "5 passes failed", None, None, "again"):
                core.degraded = why
            await router.drain(1.0)

    run_seeded(main)
    changes = [(row["change"], row["reason"]) for row in rows(path) if row["event"] == "router"]
    assert changes == [
        *(("degraded", "4 passes failed"), ("recovered", ""), ("degraded", "again")),
        ("draining", ""),
    ]


def test_an_attempt_says_what_the_engine_answered(tmp_path: Path) -> None:
    path = tmp_path / "journal"

    async def main() -> None:
        async with open_fleet() as fleet, opened(fleet, path) as router:
            fleet.fail_with("decode:status(503)")
            with pytest.raises(RequestFailed):
                await router.complete(ASK)

    run_seeded(main)
    (row,) = (row for row in rows(path) if row["event"] == "request")
    assert [(each["engine"], each["engine_status"]) for each in row["attempts"]] == [("d0", 503)]
