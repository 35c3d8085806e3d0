from __future__ import annotations

import errno
import logging
import os
import threading
from typing import TYPE_CHECKING

import pytest

from narwhal.model import ConfigError
from narwhal.telemetry import JournalFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Disk:
    """Stands in for the system's write: full from `room` bytes on, at most `step` at once."""

    def __init__(self, room: int, *, step: int = 1 << 20) -> None:
        self.room = room
        self.step = step
        self._write: Callable[[int, bytes], int] = os.write

    def write(self, fd: int, data: bytes) -> int:
        taken = min(len(data), self.room, self.step)
        if not taken:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= taken
        return self._write(fd, data[:taken])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


@pytest.fixture
def file(path: Path) -> Iterator[JournalFile]:
    file = JournalFile(path)
    yield file
    file.close()


def with_disk(monkeypatch: pytest.MonkeyPatch, disk: Disk) -> Disk:
    monkeypatch.setattr(os, "write", disk.write)
    return disk


def test_it_appends_whole_lines_and_says_how_many(file: JournalFile, path: Path) -> None:
    path.write_bytes(b"before\n")
    file.open()
    assert file.write(b"one\ntwo\n") == 2
    assert file.write(b"three\n") == 1
    assert path.read_bytes() == b"before\none\ntwo\nthree\n"
    assert file.errors == 0


def test_one_write_is_one_call(
    file: JournalFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes in append mode mix no lines only if each batch is one call."""
    calls: list[bytes] = []
    disk = Disk(100)

    def write(fd: int, data: bytes) -> int:
        calls.append(data)
        return disk.write(fd, data)

    monkeypatch.setattr(os, "write", write)
    file.write(b"one\ntwo\n")
    assert calls == [b"one\ntwo\n"]


def test_it_is_not_readable_by_everybody(file: JournalFile, path: Path) -> None:
    file.open()
    assert path.stat().st_mode & 0o007 == 0


def test_at_start_up_a_path_that_cannot_be_opened_is_the_operator_s_to_mend(
    tmp_path: Path,
) -> None:
    file = JournalFile(tmp_path / "absent" / "journal.jsonl")
    with pytest.raises(ConfigError, match=r"absent.*cannot be opened.*name a file") as caught:
        file.open()
    assert len(caught.value.problems) == 1


def test_after_a_rotation_rows_go_to_the_new_file(file: JournalFile, path: Path) -> None:
    file.write(b"old\n")
    rotated = path.with_suffix(".1")
    path.rename(rotated)
    file.write(b"still old\n")
    file.reopen()
    file.write(b"new\n")
    assert rotated.read_bytes() == b"old\nstill old\n"
    assert path.read_bytes() == b"new\n"


def test_a_rotation_that_left_no_folder_is_made_good_by_a_later_write(
    file: JournalFile, path: Path
) -> None:
    file.write(b"old\n")
    folder = path.parent
    away = folder.with_name("away")
    folder.rename(away)
    file.reopen()
    assert file.write(b"lost\n") == 0
    assert file.errors == 1
    away.rename(folder)
    assert file.write(b"kept\n") == 1
    assert path.read_bytes() == b"old\nkept\n"


def test_a_second_write_gives_up_on_a_stuck_disk(
    file: JournalFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At shutdown: the thread whose write is stuck was left, and what remains is not waited for."""
    monkeypatch.setattr("narwhal.telemetry.sink._BUSY_WAIT_S", 0.0)
    write = os.write
    began, go_on = threading.Event(), threading.Event()

    def stuck(fd: int, data: bytes) -> int:
        began.set()
        go_on.wait()
        return write(fd, data)

    monkeypatch.setattr(os, "write", stuck)
    thread = threading.Thread(target=file.write, args=(b"one\n",))
    thread.start()
    try:
        assert began.wait(10)
        assert file.write(b"two\n") == 0
        file.close()
    finally:
        go_on.set()
        thread.join()
    assert file.write(b"three\n") == 1
    assert path.read_bytes() == b"one\nthree\n"


def test_a_full_device_raises_nothing(caplog: pytest.LogCaptureFixture) -> None:
    file = JournalFile("/dev/full")
    with caplog.at_level(logging.WARNING):
        assert file.write(b"one\n") == 0
        assert file.write(b"two\n") == 0
    assert file.errors == 2
    assert len(caplog.records) == 1
    assert "No space left" in caplog.text


def test_each_spell_of_failure_is_logged_once_and_its_end_too(
    file: JournalFile, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    disk = with_disk(monkeypatch, Disk(0))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            file.write(b"row\n")
        disk.room = 100
        file.write(b"row\n")
        file.write(b"row\n")
        disk.room = 0
        file.write(b"row\n")
    said = [record.getMessage() for record in caplog.records]
    assert ["fails" in message for message in said] == [True, False, True]
    assert "works again" in said[1]
    assert file.errors == 4


def test_a_torn_line_spoils_no_other(
    file: JournalFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = with_disk(monkeypatch, Disk(6))
    assert file.write(b"one\ntwo\nthree\n") == 1
    assert file.write(b"lost whole\n") == 0
    disk.room = 100
    assert file.write(b"four\n") == 1
    assert path.read_bytes() == b"one\ntw\nfour\n"


def test_a_disk_that_takes_only_the_line_break_has_still_mended_the_tear(
    file: JournalFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = with_disk(monkeypatch, Disk(2))
    assert file.write(b"one\n") == 0
    disk.room = 1
    assert file.write(b"two\n") == 0
    disk.room = 100
    assert file.write(b"three\n") == 1
    assert path.read_bytes() == b"on\nthree\n"


def test_a_disk_full_at_a_line_s_end_leaves_no_tear(
    file: JournalFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = with_disk(monkeypatch, Disk(4))
    assert file.write(b"one\ntwo\n") == 1
    disk.room = 100
    assert file.write(b"three\n") == 1
    assert path.read_bytes() == b"one\nthree\n"


def test_a_write_in_pieces_is_completed(
    file: JournalFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_disk(monkeypatch, Disk(100, step=3))
    assert file.write(b"one\ntwo\n") == 2
    assert path.read_bytes() == b"one\ntwo\n"
    assert file.errors == 0


def test_closing_twice_is_once_and_a_write_opens_again(file: JournalFile, path: Path) -> None:
    file.write(b"one\n")
    file.close()
    file.close()
    assert file.write(b"two\n") == 1
    assert path.read_bytes() == b"one\ntwo\n"


def test_a_line_that_another_process_left_torn_spoils_no_other(
    file: JournalFile, path: Path
) -> None:
    path.write_bytes(b"whole\nto")
    file.open()
    assert file.write(b"one\n") == 1
    assert path.read_bytes() == b"whole\nto\none\n"


def test_a_tear_stays_with_the_file_that_was_renamed(
    file: JournalFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = with_disk(monkeypatch, Disk(2))
    assert file.write(b"one\n") == 0
    path.rename(path.with_suffix(".1"))
    file.reopen()
    disk.room = 100
    assert file.write(b"two\n") == 1
    assert path.read_bytes() == b"two\n"


def test_a_pipe_that_nobody_reads_holds_nobody_up(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="a pipe that nobody reads"):
        JournalFile(path).open()


def test_a_reader_of_a_pipe_may_leave_and_another_come(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    file = JournalFile(path)
    file.open()
    assert file.write(b"one\n") == 1
    os.close(reader)
    assert file.write(b"two\n") == 0
    assert file.write(b"three\n") == 0
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    assert file.write(b"four\n") == 1
    assert os.read(reader, 100) == b"four\n"
    assert file.errors == 2
    assert "works again" in caplog.text
    file.close()
    os.close(reader)
