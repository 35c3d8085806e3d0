"""Files: what cannot be read, and that a file is the old one or the new one at every instant."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from profile_samples import BARE_ROW, FULL_ROW, document, parse

from narwhal.config.document import MAX_FILE_BYTES
from narwhal.model import ConfigError
from narwhal.profiles import (
    EngineSamples,
    Measured,
    ProfileStore,
    SampleStore,
    load_samples,
    load_store,
    samples_path,
    store_bytes,
    update_samples,
    update_store,
    write_samples,
    write_store,
)

from disks import Disk, Killed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OLD = parse(document(BARE_ROW, BARE_ROW | {"iid": "d1"}))
NEW = parse(document(FULL_ROW))


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    (line,) = caught.value.problems
    return line


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# Reading


def test_a_store_that_cannot_be_read(tmp_path: Path) -> None:
    there, path = tmp_path / "cut.json", tmp_path / "no.json"
    there.write_bytes(store_bytes(OLD)[:50])
    assert refusal(lambda: load_store(path)) == (
        "no.json: cannot be read: No such file or directory"
    )
    assert refusal(lambda: load_store(there)).startswith("cut.json: is not valid JSON: ")
    assert refusal(lambda: load_store("a\0b")).startswith("'a\\x00b': cannot be read: ")
    assert refusal(lambda: load_store("/dev/zero")).endswith("which no profile store is")
    assert refusal(lambda: load_samples("/dev/zero")).endswith("which no samples file is")


def test_the_engines_are_checked_on_the_way(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    write_store(path, OLD)
    assert load_store(path, iids=["d0", "d1"]) == OLD
    assert "d2" in refusal(lambda: load_store(path, iids=["d0", "d1", "d2"]))


# Writing


def test_load_write_load(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "deep" / "p.json"
    write_store(path, OLD)
    first = path.read_bytes()
    write_store(str(path), load_store(path))
    assert path.read_bytes() == first == store_bytes(OLD)
    assert load_store(path) == OLD
    assert names_in(path.parent) == ["p.json"]


def test_samples_lie_beside_their_store(tmp_path: Path) -> None:
    assert samples_path("runs/profiles.json") == Path("runs/profiles.samples.json")
    assert samples_path("profiles") == Path("profiles.samples.json")
    path = samples_path(tmp_path / "p.json")
    engine = Measured(iid="d0", version="1", process_start_s=1.0)
    samples = SampleStore((EngineSamples(engine=engine),))
    write_samples(path, samples)
    assert load_samples(path, iids=["d0"]) == samples


def test_samples_of_some_engines_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "store.samples.json"

    def samples(iid: str, version: str) -> EngineSamples:
        return EngineSamples(engine=Measured(iid=iid, version=version, process_start_s=1.0))

    assert update_samples(path, [samples("d0", "1")]) == load_samples(path)
    update_samples(path, [samples("p0", "1")])
    update_samples(path, [samples("d0", "2")])
    assert load_samples(path) == SampleStore((samples("d0", "2"), samples("p0", "1")))
    path.write_text("{")
    assert "is not valid JSON" in refusal(lambda: update_samples(path, []))
    assert path.read_text() == "{"


def test_an_update_keeps_what_it_was_not_asked_to_change(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    (row,) = NEW.rows
    assert update_store(path, [row], meta={"first": True}) == load_store(path)
    write_store(path, OLD)
    changed = update_store(path, [row])
    assert changed == load_store(path)
    assert changed.rows == (row, OLD.rows[1])
    assert changed.meta == OLD.meta
    assert update_store(path, [], meta={}).meta == {}


def test_an_update_does_not_touch_a_file_that_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(b"{}")
    with pytest.raises(ConfigError):
        update_store(path, NEW.rows)
    assert path.read_bytes() == b"{}"
    assert "cannot be read" in refusal(lambda: update_store(tmp_path, NEW.rows))


@pytest.fixture
def umask() -> Iterator[None]:
    old = os.umask(0o027)
    yield
    os.umask(old)


def test_a_new_file_has_the_mode_of_the_umask_and_an_old_one_its_own(
    tmp_path: Path, umask: None
) -> None:
    path = tmp_path / "p.json"
    write_store(path, OLD)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o664)
    write_store(path, NEW)
    assert stat.S_IMODE(path.stat().st_mode) == 0o664


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "p.json"
    link.symlink_to("real/store.json")
    write_store(link, OLD)
    write_store(link, NEW)
    assert link.is_symlink()
    assert load_store(tmp_path / "real" / "store.json") == NEW
    assert names_in(tmp_path / "real") == ["store.json"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    line = refusal(lambda: write_store(tmp_path / "file" / "p.json", OLD))
    assert line == "p.json: cannot be written: Not a directory; what was there is as it was"
    assert refusal(lambda: write_store(tmp_path, OLD)).startswith(
        f"{tmp_path.name}: cannot be written: "
    )
    assert refusal(lambda: write_store("a\0b", OLD)).startswith("'a\\x00b': cannot be written: ")
    assert names_in(tmp_path) == ["file"]


def test_a_file_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    large = ProfileStore(meta={"x": "y" * MAX_FILE_BYTES})
    assert "more than is ever read" in refusal(lambda: write_store(path, large))
    assert names_in(tmp_path) == []


def test_a_writer_that_was_killed_does_not_stop_the_next(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    (tmp_path / ".p.json.0.tmp").write_bytes(b"a longer store" * 1000)
    write_store(path, OLD)
    assert load_store(path) == OLD


# Failing in every way


def written(path: Path, at: int, error: BaseException) -> tuple[Disk, BaseException | None]:
    caught: BaseException | None = None
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch, at, error)
        try:
            write_store(path, NEW)
        except (ConfigError, Killed) as raised:
            caught = raised
    disk.close_all()
    return disk, caught


def steps(path: Path) -> list[str]:
    return written(path, -1, Killed())[0].done


def prepared(tmp_path: Path, *, there: bool) -> tuple[Path, bytes | None]:
    path = tmp_path / "p.json"
    if there:
        write_store(path, OLD)
    return path, store_bytes(OLD) if there else None


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def test_the_steps_are_in_the_order_that_a_crash_of_the_machine_needs(tmp_path: Path) -> None:
    path, _ = prepared(tmp_path, there=True)
    done = [step for step in steps(path) if step not in {"mkdir", "stat"}]
    order = [step for index, step in enumerate(done) if step != done[index - 1]]
    assert order == [
        "open", "fchmod", "write", "fsync", "close", "replace", "open", "fsync", "close",
    ]  # fmt: skip


@pytest.mark.parametrize("there", [True, False])
def test_a_process_that_is_killed_at_any_step(tmp_path: Path, there: bool) -> None:
    path, old = prepared(tmp_path, there=there)
    total = len(steps(path))
    outcomes = set()
    for at in range(total):
        if there:
            write_store(path, OLD)
        else:
            path.unlink(missing_ok=True)
        _, caught = written(path, at, Killed())
        assert isinstance(caught, Killed)
        assert content(path) in {old, store_bytes(NEW)}
        outcomes.add(content(path))
        write_store(path, NEW)
        assert load_store(path) == NEW, "what it left behind is in nobody's way"
        for left in tmp_path.glob(".*.tmp"):
            left.unlink()
    assert outcomes == {old, store_bytes(NEW)}


@pytest.mark.parametrize("there", [True, False])
def test_a_call_that_fails(tmp_path: Path, there: bool) -> None:
    path, old = prepared(tmp_path, there=there)
    total = len(steps(path))
    for at in range(total):
        if there:
            write_store(path, OLD)
        else:
            path.unlink(missing_ok=True)
        error = OSError(errno.ENOSPC, "No space left on device")
        disk, caught = written(path, at, error)
        assert isinstance(caught, ConfigError)
        (line,) = str(caught).splitlines()
        replaced = "replace" in disk.done[:at]
        assert content(path) == (store_bytes(NEW) if replaced else old)
        assert ("was written, but its directory" in line) == replaced
        assert ("cannot be written: No space left on device" in line) != replaced
        assert set(names_in(tmp_path)) <= {"p.json"}
        assert not disk.opened or disk.done[at] == "close", "a descriptor is left open"


def test_an_empty_store_is_a_store(tmp_path: Path) -> None:
    write_store(tmp_path / "p.json", ProfileStore())
    assert load_store(tmp_path / "p.json", iids=[]) == ProfileStore()
