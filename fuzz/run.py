"""Run targets for a bounded number of executions; 1 if an input breaks one of them.

`python fuzz/run.py [TARGET ...] --executions N`, see README.md beside this file.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz import targets

FUZZ = targets.FUZZ
FOUND = FUZZ / "found"
CRASHES = FUZZ / "crashes"
EXECUTIONS = 10000
MOST_BYTES = 8192
# An input that takes longer, or more memory, is a fault as well.
MOST_SECONDS, MOST_MEBIBYTES = 10, 2048

_TRACEBACK = "=== Uncaught Python exception: ==="
_LAST_LINES = 30
_KEPT = re.compile(r"Test unit written to (.+)")
_DONE = re.compile(r"Done (\d+) runs in (\d+) second")


def main(arguments: list[str] | None = None) -> int:
    """Run, or replay one input; the process's exit code."""
    options = _parser().parse_args(arguments)
    chosen = options.targets or targets.names()
    if unknown := set(chosen) - set(targets.names()):
        return _fail(f"no target is called {', '.join(sorted(unknown))}: see --help")
    if options.replay is not None:
        if len(chosen) != 1:
            return _fail("--replay needs the one target that the input is for")
        targets.load(chosen[0]).check(options.replay.read_bytes())
        print(f"{chosen[0]}: {options.replay} breaks nothing")
        return 0
    if find_spec("atheris") is None:
        return _fail(
            "atheris is not installed here: use `tox -e fuzz`, or install the extra `fuzz` "
            "(CPython 3.11 to 3.13 on Linux)"
        )
    broken = [name for name in chosen if not _run(name, options)]
    if broken:
        print(f"broken: {', '.join(broken)}")
    return 1 if broken else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = targets.names()
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"all if none is given: {', '.join(names)}"
    )
    parser.add_argument(
        "--executions", type=int, default=EXECUTIONS, help="of each target (%(default)s)"
    )
    parser.add_argument("--seconds", type=int, default=0, help="at most, for each target")
    parser.add_argument("--seed", type=int, default=1, help="another one for another search")
    parser.add_argument("--resume", action="store_true", help="go on with what earlier runs found")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="check this input, and no more")
    return parser


def _run(name: str, options: argparse.Namespace) -> bool:
    """Run one target; whether nothing was found that breaks it."""
    found = FOUND / name
    if not options.resume:
        shutil.rmtree(found, ignore_errors=True)
    found.mkdir(parents=True, exist_ok=True)
    (CRASHES / name).mkdir(parents=True, exist_ok=True)
    ran = subprocess.run(
        [sys.executable, str(FUZZ / "drive.py"), name, *_fuzzer_arguments(name, options)],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # Sets in the code under test are walked in the same order, so that a seed repeats.
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )
    done = _DONE.search(ran.stdout)
    if ran.returncode == 0 and done:
        runs, seconds = int(done[1]), max(1, int(done[2]))
        print(f"{name}: {runs} executions, {runs // seconds} a second", flush=True)
        return True
    print(_last_words(ran.stdout))
    print(f"{name}: failed with exit code {ran.returncode}")
    for crash in _KEPT.findall(ran.stdout):
        print(f"  kept: {crash}\n  replay: {_replay(name, crash)}", flush=True)
    return False


def _fuzzer_arguments(name: str, options: argparse.Namespace) -> list[str]:
    arguments = [
        str(FOUND / name),
        str(targets.CORPUS / name),
        f"-runs={options.executions}",
        f"-seed={options.seed}",
        f"-max_len={MOST_BYTES}",
        f"-timeout={MOST_SECONDS}",
        f"-rss_limit_mb={MOST_MEBIBYTES}",
        f"-artifact_prefix={CRASHES / name}/",
    ]
    if options.seconds:
        arguments.append(f"-max_total_time={options.seconds}")
    dictionary = targets.DICTIONARIES / f"{name}.dict"
    if dictionary.exists():
        arguments.append(f"-dict={dictionary}")
    return arguments


def _last_words(output: str) -> str:
    """What a process said of its failure: the traceback, if there is one, without the search."""
    _, marker, traceback = output.partition(_TRACEBACK)
    return marker + traceback if marker else "\n".join(output.splitlines()[-_LAST_LINES:])


def _replay(name: str, crash: str) -> str:
    return f"{sys.executable} {FUZZ / 'run.py'} {name} --replay {crash}"


def _fail(message: str) -> int:
    print(f"fuzz/run.py: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
