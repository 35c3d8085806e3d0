"""Applies each mutant to a copy of the sources and looks whether the net catches it.

`python tests/mutants/hunt.py [NAME ...]`: a simulation first, from seed 0 until a world fails,
and then the properties and sweeps that tests hold. Exits with 1 if a mutant gets through.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
WORLDS = 40
"""Worlds that a mutant has to get through."""
TIMEOUT_S = 900
TESTS = (
    "tests/app/test_app_arithmetic.py",
    "tests/app/test_app_ties.py",
    "tests/app/test_app_order.py",
    "tests/app/test_app_readers.py",
    "tests/app/test_app_credits.py",
    "tests/app/test_app_starved.py",
    "tests/app/test_app_limits.py",
    "tests/router",
    "tests/retry",
    "tests/net/test_net_pool.py",
    "tests/app/test_app_sweeps.py",
)


def caught(mutant: Mutant, folder: Path) -> str | None:
    """What caught the mutant; None if nothing did."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source)
    target = source / "narwhal" / mutant.file
    target.write_text(mutant.apply(target.read_text(encoding="utf-8")), encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    worlds = ["-m", "narwhal", "simulate", "chaos", "--runs", str(WORLDS), "--jobs", "2"]
    done = run([*worlds, "--fail-fast"], environ)
    if done.returncode:
        return first_of(done.stdout, "seed ") or (done.stdout + done.stderr)[-300:]
    tests = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS]
    done = run(tests, environ)
    return first_of(done.stdout, "FAILED ") if done.returncode else None


def run(arguments: list[str], environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    try:
        return subprocess.run(  # noqa: S603 - this project's own commands
            command,
            env=environ,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "seed ?: it does not come to an end", "")


def first_of(output: str, start: str) -> str | None:
    return next((line for line in output.splitlines() if line.startswith(start)), None)


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    free = 0
    for mutant in chosen:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            by = caught(mutant, Path(folder))
        took = time.perf_counter() - began
        free += by is None
        print(f"{mutant.name}: {by or 'NOT CAUGHT'} ({took:.0f} s)", flush=True)
    print(f"{len(chosen)} mutants, {free} not caught")
    return 1 if free else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
