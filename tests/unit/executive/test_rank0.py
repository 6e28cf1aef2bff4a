"""What rank 0 says of a run that it can record no more, or cannot go on with; without MPI."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support import record, workflow

from diel.errors import CheckpointError, RunDirectoryError
from diel.executive import rank0
from diel.executive.driver import Driver
from diel.run.directory import RunDirectory
from diel.run.journal import JournalReader, JournalWriter

ONE = """\
[[module]]
name = "work"
function = "./m.py:work"
[[group]]
name = "g"
modules = ["work"]
"""
FULL = OSError(errno.ENOSPC, "No space left on device")


def run_that_raises(error: Exception, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a workflow whose driver raises; return the records of its journal."""

    def driver(*_: object, **__: object) -> Any:
        def run(*_: object, **__: object) -> int:
            raise error

        return SimpleNamespace(run=run)

    started = record("RunStarted", workflow="w", ranks=3, groups=["g"])
    monkeypatch.setattr(rank0, "Driver", driver)
    monkeypatch.setattr(rank0, "_run_started", lambda *_: started)
    monkeypatch.setattr(rank0, "dismiss_all", lambda *_: None)
    file = workflow(folder, ONE, m="def work(ctx): pass\n")
    parent: Any = SimpleNamespace(size=3, host="h", hosts_and_gpus=[("h", ())] * 3, bound_cores={})
    rank0.run_rank0(
        parent,
        str(file),
        runs=folder / "runs",
        observer_for=lambda _: rank0.NullObserver(),
    )


def journal(folder: Path) -> list[Any]:
    (run,) = (folder / "runs").iterdir()
    return JournalReader(RunDirectory(run).journal).new_records()


def test_a_disk_that_is_full_is_not_called_a_checkpoint_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OSError, match="No space left"):
        run_that_raises(FULL, tmp_path, monkeypatch)
    assert [type(one).__name__ for one in journal(tmp_path)] == ["RunCreated"]


def test_a_checkpoint_that_cannot_be_read_is_why_a_run_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunDirectoryError, match="cannot be resumed: it is damaged"):
        run_that_raises(CheckpointError("it is damaged"), tmp_path, monkeypatch)
    assert journal(tmp_path)[-1].exit_code == 2


def test_a_checkpoint_on_a_disk_that_fails_counts_as_one_that_cannot_be_read() -> None:
    def restore(_: Path) -> None:
        raise FULL

    driver: Any = object.__new__(Driver)
    driver._resumption = SimpleNamespace(checkpoint=Path("c"))
    driver._tuple_client = lambda: SimpleNamespace(restore=restore)
    with pytest.raises(CheckpointError, match="No space left"):
        driver._restore_tuples()


def test_a_run_that_cannot_go_on_lets_the_other_ranks_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "w.toml"
    file.write_text("")
    directory = RunDirectory.create(tmp_path / "runs", "w", file)  # nobody has asked to resume it
    plan: Any = SimpleNamespace(
        max_threads=1, pool=(), groups=[], needs={}, restarts=0, survives_loss=False
    )
    plan.replace = lambda **_: plan
    dismissed: list[object] = []
    monkeypatch.setattr(rank0, "_checked", lambda *_, **__: (plan, None))
    monkeypatch.setattr(rank0, "set_thread_environment", lambda _: None)
    monkeypatch.setattr(rank0, "assign_ranks", lambda *_: ([], None))
    monkeypatch.setattr(rank0, "dismiss_all", dismissed.append)
    parent: Any = SimpleNamespace(size=3, hosts_and_gpus=[("here", ())] * 3, bound_cores={})
    with pytest.raises(RunDirectoryError, match="nobody has asked to resume"):
        rank0.run_rank0(
            parent,
            str(file),
            runs=tmp_path,
            run_dir=directory.path,
            resumes=True,
            observer_for=lambda _: rank0.NullObserver(),
        )
    assert dismissed == [parent]
    JournalWriter(directory.journal).close()  # nobody keeps it locked
