"""What dead runs have left is removed; what anybody may still use is not."""

from __future__ import annotations

import mmap
import os
import platform
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from diel.executive import leftovers
from diel.executive.leftovers import remove_leftovers

HOST, USER = platform.node().split(".")[0], os.geteuid()
DEAD = int(subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, check=True).stdout)  # fmt: skip


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(leftovers, "_YOUNG_S", -1.0)
    return tmp_path


def session(place: Path, pid: int, host: str = HOST) -> Path:
    folder = place / f"ompi.{pid}"
    (folder / "0" / "1").mkdir(parents=True)
    (folder / f"pmix.{host}.tool").touch()
    return folder


def sockets(folder: Path, name: str, kind: int) -> socket.socket:
    folder.mkdir()
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(str(folder / name))
    if kind == socket.SOCK_STREAM:
        listener.listen()
    return listener


def test_what_nobody_uses_is_removed(place: Path) -> None:
    segment = place / f"sm_segment.{HOST}.{USER}.8ca00001.0"
    segment.write_bytes(b"x")
    (place / "mpich_shm_50589a8a_0").write_bytes(b"x")
    sockets(place / "diel-96jvwbep", "tuples", socket.SOCK_STREAM).close()
    sockets(place / f"diel-{USER}-07ec4a87", "0", socket.SOCK_DGRAM).close()
    (place / f"diel-{USER}-07ec4a87" / "pid").write_text(f"{DEAD}\n")
    session(place, DEAD)
    assert len(remove_leftovers([place, place])) == 5
    assert list(place.iterdir()) == []


def test_what_somebody_may_use_stays(place: Path) -> None:
    mapped = place / f"sm_segment.{HOST}.{USER}.8ca00001.0"
    mapped.write_bytes(b"x")
    inside = session(place, DEAD) / "0" / "shared"
    inside.write_bytes(b"x")
    session(place, os.getpid())
    session(place, DEAD + 1, host="another")  # a container's, perhaps
    (place / "diel-abcdefgh").mkdir()
    (place / "diel-abcdefgh" / "notes.txt").touch()  # somebody's own
    (place / f"sm_segment.another.{USER}.8ca00001.0").touch()
    (place / f"sm_segment.{HOST}.{USER + 1}.8ca00001.0").touch()
    (place / "mpich_shm_50589a8a_0").symlink_to(mapped)
    (place / "diel-testing-uqowwqfv").mkdir()
    (place / "mpich_shm_1a2b3c4d_0").touch()
    if USER == 0:
        os.chown(place / "mpich_shm_1a2b3c4d_0", 12345, -1)
    else:
        (place / "mpich_shm_1a2b3c4d_0").unlink()
    before = sorted(place.iterdir())
    with (
        mapped.open("r+b") as one,
        mmap.mmap(one.fileno(), 1),
        inside.open("r+b") as other,
        mmap.mmap(other.fileno(), 1),
        sockets(place / "diel-96jvwbep", "tuples", socket.SOCK_STREAM),
        sockets(place / f"diel-{USER}-07ec4a87", "0", socket.SOCK_DGRAM),
    ):
        (place / f"diel-{USER}-07ec4a87" / "asleep").touch()
        assert remove_leftovers([place]) == []
        assert set(before) <= set(place.iterdir())


def test_what_is_young_may_be_of_a_run_that_starts(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_YOUNG_S", 60.0)
    segment = place / "mpich_shm_50589a8a_0"
    segment.touch()
    assert remove_leftovers([place, place / "none"]) == []
    os.utime(segment, (time.time() - 61, time.time() - 61))
    assert remove_leftovers([place]) == [segment]
