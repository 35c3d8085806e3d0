"""What a run with real engines saw, as a file."""

from __future__ import annotations

import json
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from real_install import pinned


class Notes:
    """Collected in memory, and written once at the end of the run."""

    def __init__(self) -> None:
        self.ready: dict[str, float] = {}
        """Seconds until an engine was ready."""
        self.tests: dict[str, dict[str, Any]] = {}
        """By module and function: what it says, how often it passed and failed, its figures."""
        self._begun = time.time()

    def of(self, item: pytest.Item) -> dict[str, Any]:
        """What is noted of a test, all its parameters together."""
        function: Any = getattr(item, "function", None)
        says = " ".join((function.__doc__ or item.name).split())
        name = f"{item.path.stem}.{getattr(function, '__name__', item.name)}"
        new = {"says": says, "passed": 0, "failed": 0, "figures": {}}
        return self.tests.setdefault(name, new)

    def ended(self, item: pytest.Item, *, passed: bool) -> None:
        """A test is over."""
        self.of(item)["passed" if passed else "failed"] += 1

    def figures(self, item: pytest.Item, figures: dict[str, Any]) -> None:
        """What it saw: values of the same name are kept in a list."""
        kept = self.of(item)["figures"]
        for name, value in figures.items():
            kept.setdefault(name, []).append(value)

    def write(self, path: Path) -> None:
        """Write everything, for `real_report.py` to read."""
        document = {
            "date": time.strftime("%Y-%m-%d", time.gmtime(self._begun)),
            "took_s": round(time.time() - self._begun),
            "narwhal": version("narwhal-trio"),
            "python": platform.python_version(),
            "kernel": ".".join(platform.release().split(".")[:2]),
            "processors": os.cpu_count(),
            "pinned": pinned(),
            "ready_s": {iid: round(seconds, 1) for iid, seconds in self.ready.items()},
            "tests": self.tests,
        }
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
