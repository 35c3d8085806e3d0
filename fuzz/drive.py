"""One target under the fuzzer, in a process of its own; `run.py` starts it.

`drive.py TARGET ARGUMENT...`: the arguments are libFuzzer's. Only the code of the `narwhal`
packages is instrumented, so that the search follows the parsers and not the checks.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))

if TYPE_CHECKING:
    from collections.abc import Callable


def main(name: str, arguments: list[str]) -> None:
    """Search until a bound is reached or an input fails; does not return."""
    with atheris.instrument_imports(include=["narwhal"]):
        from fuzz.targets import load  # noqa: PLC0415 - what is imported here is instrumented

        target = load(name)
    options: dict[str, Any] = {}
    if hasattr(target, "change"):
        options["custom_mutator"] = _mutator(target.change)
    atheris.Setup([sys.argv[0], *arguments], target.check, **options)
    atheris.Fuzz()


def _mutator(
    change: Callable[[bytes, random.Random], bytes | None],
) -> Callable[[bytes, int, int], bytes]:
    """The target's own way of changing an input half of the time, and the fuzzer's otherwise."""

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        chance = random.Random(seed)  # noqa: S311 - to repeat, not to surprise
        changed = change(bytes(data), chance) if chance.random() < 0.5 else None  # noqa: PLR2004
        if changed is None or len(changed) > most:
            own: bytes = atheris.Mutate(data, most)
            return own
        return changed

    return mutate


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
