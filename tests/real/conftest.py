"""Real engines for the tests that are marked `real`, and what is noted of how they went.

Those tests run with `NARWHAL_REAL=1`, as `tox -e real` has it, and are left out otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_engines import EngineOptions, Engines
from real_install import FOLDER, Installed, where
from real_notes import Notes

WANTED = "NARWHAL_REAL"
# No more engines at once than two processors and 5 GB can bear.
LAYOUTS = {
    "split": (
        EngineOptions(iid="p0", kv_role="kv_producer"),
        EngineOptions(iid="d0", kv_role="kv_consumer"),
        EngineOptions(iid="alone", kv_role=None),
    ),
    "both": tuple(
        # A lease that a test can sit out, and a pool that it can fill.
        EngineOptions(iid=iid, kv_role="kv_both", lease_s=6, blocks=24, max_num_queued_reqs=4)
        for iid in ("b0", "b1", "b2")
    ),
}


class Stage:
    """The engines that run now: one layout at a time."""

    def __init__(self, installed: Installed, folder: Path, notes: Notes) -> None:
        self._installed = installed
        self._folder = folder
        self._notes = notes
        self._name = ""
        self._engines: Engines | None = None

    def use(self, name: str) -> Engines:
        """That layout's engines; the others are ended first."""
        if self._engines is None or self._name != name:
            self.clear()
            folder = self._folder / name
            folder.mkdir()
            engines = Engines(LAYOUTS[name], self._installed, folder)
            engines.start()
            self._name, self._engines = name, engines
            for engine in engines.all:
                self._notes.ready[engine.iid] = engine.ready_s
        return self._engines

    def clear(self) -> None:
        """End what runs."""
        if self._engines is not None:
            self._engines.stop()
            self._engines = None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get(WANTED) == "1":
        return
    out = [item for item in items if item.get_closest_marker("real")]
    if out:
        items[:] = [item for item in items if item not in out]
        config.hook.pytest_deselected(items=out)


@pytest.fixture(scope="session")
def notes(installed: Installed) -> Iterator[Notes]:
    """Collects what the report page shows, and writes it at the end."""
    notes = Notes()
    yield notes
    notes.write(installed.folder / "summary.json")


@pytest.fixture(scope="session")
def installed() -> Installed:
    at = where()
    if not at.complete:
        pytest.fail(
            f"{at.folder} ({FOLDER}) has no engines, or those of another version of the "
            "installer: run 'python tests/real/real_install.py', or 'tox -e real', which does",
            pytrace=False,
        )
    return at


@pytest.fixture(scope="session")
def stage(
    installed: Installed, notes: Notes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    stage = Stage(installed, tmp_path_factory.mktemp("engines"), notes)
    yield stage
    stage.clear()


@pytest.fixture
def split(stage: Stage) -> Engines:
    """A producer p0 and a consumer d0, and an engine `alone` without a connector."""
    return stage.use("split")


@pytest.fixture
def both(stage: Stage) -> Engines:
    """b0, b1 and b2: each can do either leg; leases of 6 s, small pools. All are there."""
    engines = stage.use("both")
    for engine in engines.all:
        if not engine.healthy:
            engine.restart()
    return engines


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`note(name=value)`: a figure that this test saw, for the report."""
    notes: Notes | None = None
    if request.node.get_closest_marker("real"):
        notes = request.getfixturevalue("notes")

    def write(**figures: Any) -> None:
        if notes is not None:
            notes.figures(request.node, figures)

    return write


@pytest.fixture(autouse=True)
def _told(request: pytest.FixtureRequest) -> Iterator[None]:
    """Note how a test with real engines ended."""
    if not request.node.get_closest_marker("real"):
        yield
        return
    notes: Notes = request.getfixturevalue("notes")
    failed = request.session.testsfailed
    yield
    notes.ended(request.node, passed=request.session.testsfailed == failed)
