"""The state file: the old one or the new one at every instant, and never one from before."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import attrs
import pytest
import trio
from state_samples import SAMPLE

from narwhal.model import ConfigError
from narwhal.monitor import StateFile, load_state, state_bytes, state_file

from disks import Disk, Killed

OLD = SAMPLE
NEW = attrs.evolve(SAMPLE, written_at=SAMPLE.written_at + 1, model="a longer name")


def written(path: Path, at: int, error: BaseException) -> tuple[Disk, BaseException | None]:
    caught: BaseException | None = None
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, at, error)
        try:
            StateFile(path).write_last(state_bytes(NEW))
        except (ConfigError, Killed) as raised:
            caught = raised
    disk.close_all()
    return disk, caught


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("error", [Killed(), OSError(errno.ENOSPC, "No space left on device")])
def test_a_crash_or_a_failure_at_any_step(
    tmp_path: Path, there: bool, error: BaseException
) -> None:
    path = tmp_path / "runs" / "state.json"
    total = len(written(path, -1, Killed())[0].done)
    assert load_state(path) == NEW
    seen = set()
    for at in range(total):
        if there:
            StateFile(path).write_last(state_bytes(OLD))
        else:
            path.unlink(missing_ok=True)
        _, caught = written(path, at, error)
        assert caught is not None
        found = load_state(path)
        assert found in ((OLD if there else None), NEW)
        seen.add(found is not None and found == NEW)
        StateFile(path).write_last(state_bytes(NEW))  # what is left over is in nobody's way
        assert load_state(path) == NEW
        for left in path.parent.glob(".*.tmp"):
            left.unlink()
    assert seen == {True, False}


def test_a_write_that_was_abandoned_does_not_undo_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of a cancelled write may have its turn when the last state is on the disk."""
    path = tmp_path / "state.json"
    file = StateFile(path)
    go, over = threading.Event(), threading.Event()
    write = file._write

    def late(number: int, content: bytes, patience: float = -1) -> None:
        if patience < 0:
            assert go.wait(30)
        write(number, content, patience)
        if patience < 0:
            over.set()

    monkeypatch.setattr(file, "_write", late)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.write, state_bytes(OLD))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        file.write_last(state_bytes(NEW))

    trio.run(main)
    go.set()
    assert over.wait(30)
    assert load_state(path) == NEW


def test_the_last_word_does_not_wait_for_a_disk_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_file, "_BUSY_WAIT_S", 0.0)
    file = StateFile(tmp_path / "state.json")
    with file._lock, pytest.raises(ConfigError, match="an earlier write hangs"):
        file.write_last(b"")


def test_what_can_be_told_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "state.json"
    assert load_state(path) is None
    StateFile(path).check()
    assert list(path.parent.iterdir()) == [], "it leaves nothing behind"
    StateFile(path).write_last(state_bytes(OLD))
    StateFile(path).check()
    assert load_state(path) == OLD
    path.write_text('{"schema": "narwhal.fleet"}')
    with pytest.raises(ConfigError, match="no state document, so it is not replaced"):
        StateFile(path).check()
    for bad in (tmp_path, path / "x", "a\0b"):
        with pytest.raises(ConfigError, match=r"^recovery\.state_path: .* cannot be written"):
            StateFile(bad).check()


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_state(tmp_path)
    with pytest.raises(ConfigError, match="which no state document is"):
        load_state("/dev/zero")
