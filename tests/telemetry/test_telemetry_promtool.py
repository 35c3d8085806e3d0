"""The exposition as Prometheus' own tool sees it, and what a scrape of a large fleet takes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import attrs
import pytest
from telemetry_samples import LIVE, FixedSource, everything_happens, make_telemetry, scraped

from narwhal.telemetry.catalogue import PROCESS

if TYPE_CHECKING:
    from narwhal.telemetry import LiveState, Telemetry

PROMTOOL = shutil.which("promtool")


def fleet_of(count: int) -> tuple[Telemetry, FixedSource]:
    iids = tuple(f"n{number}" for number in range(count))
    live = attrs.evolve(LIVE, engines=tuple(attrs.evolve(LIVE.engines[0], iid=iid) for iid in iids))
    telemetry, source = make_telemetry(engines=iids), FixedSource(live)
    telemetry.attach(source)
    return telemetry, source


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_complain_about() -> None:
    telemetry = make_telemetry()
    telemetry.attach(FixedSource())
    everything_happens(telemetry)
    telemetry.metrics.add_process()
    checked = subprocess.run(  # noqa: S603 - Prometheus' own tool
        [str(PROMTOOL), "check", "metrics"],
        input=telemetry.metrics.render(),
        check=False,
        capture_output=True,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


@pytest.mark.skipif(sys.platform != "linux", reason="read from /proc")
def test_the_process_s_metrics_are_those_that_are_documented() -> None:
    telemetry = make_telemetry()
    before = scraped(telemetry).keys()
    telemetry.metrics.add_process()
    samples = scraped(telemetry)
    assert {name for name, _ in samples.keys() - before} == set(PROCESS)
    assert samples["process_resident_memory_bytes", ()] > 1e6


def calls_of_a_scrape(telemetry: Telemetry) -> int:
    """Python calls: what it takes, whatever else the machine does."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        telemetry.metrics.render()
    finally:
        sys.setprofile(None)
    return calls


def test_a_scrape_reads_the_router_once_and_takes_time_in_proportion_to_its_series() -> None:
    large, source = fleet_of(64)
    small, _ = fleet_of(8)
    read = 0

    class Counting:
        def live_state(self) -> LiveState:
            nonlocal read
            read += 1
            return source.live_state()

    large.attach(Counting())
    large.metrics.render()
    assert read == 1
    series = len(scraped(large))
    assert 3000 < series < 6000
    per_series = calls_of_a_scrape(large) / series
    # 13.4 with prometheus_client 0.22 to 0.25, nearly all of it the library's.
    assert per_series < 20
    assert calls_of_a_scrape(small) / len(scraped(small)) == pytest.approx(per_series, rel=0.3)
