"""One target under the fuzzer, in a process of its own; `run.py` starts it.

`drive.py TARGET ARGUMENT...`: the arguments are libFuzzer's. Only the code of the `narwhal`
packages is instrumented, so that the search follows the parsers and not the checks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))


def main(name: str, arguments: list[str]) -> None:
    """Search until a bound is reached or an input fails; does not return."""
    with atheris.instrument_imports(include=["narwhal"]):
        from fuzz.targets import load  # noqa: PLC0415 - what is imported here is instrumented

        check = load(name)
    atheris.Setup([sys.argv[0], *arguments], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
