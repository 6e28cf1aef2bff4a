"""How ``diel run`` starts its ranks again; an mpiexec only writes down what it is told."""

from __future__ import annotations

import argparse
import os
import platform
import signal
from pathlib import Path

import pytest
from support import record, workflow

from diel.cli.display import PlainDisplay
from diel.cli.run import _LaunchedRun
from diel.executive.launch import LauncherSignals
from diel.executive.placement.planning import plan_run
from diel.executive.rank_launcher import Mpiexec
from diel.exit_codes import STOPPED
from diel.loading.functions import check_options
from diel.run.directory import RunDirectory
from diel.run.journal import JournalWriter
from diel.workflow.load import read_draft

ONE = """\
[[module]]
name = "work"
function = "./m.py:work"
[[group]]
name = "g"
modules = ["work"]
"""
MPIEXEC = """\
#!/bin/sh
printf '%s\\n' "$*" >>{told}
test "$(wc -l <{told})" -gt 1 || echo "The PMIx server's listener thread failed to start."
exit 1
"""


def test_a_stop_that_comes_before_the_next_start_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = read_draft(workflow(tmp_path, ONE, m="def work(ctx): pass\n"))
    checked = check_options(draft)
    directory = RunDirectory.create(tmp_path / "runs", "w", tmp_path / "w.toml")
    with JournalWriter(directory.journal) as journal:
        journal.write(record("RunStarted", workflow="w", ranks=4, groups=["g"], host="here"))
    options = argparse.Namespace(file=tmp_path / "w.toml", trace=False, restarts=1)
    launcher = Mpiexec(tmp_path / "none", "Open MPI", allow_run_as_root=True)
    run = _LaunchedRun(options, checked, draft, directory, launcher)

    def press(_: object) -> dict[str, bool]:
        os.kill(os.getpid(), signal.SIGINT)
        return {}

    monkeypatch.setattr(run, "_answering_hosts", press)
    display = PlainDisplay(directory)
    display.refresh()
    with LauncherSignals() as signals:
        run._restart_if_lost(plan_run(checked, draft, 4), 1, display, signals)
    assert display.conclude(1) == STOPPED
    printed = capsys.readouterr()
    assert "w was stopped after" in printed.out
    assert f"to go on with it: diel run --resume {directory.path}" in printed.out
    assert printed.err == ""


def test_an_mpiexec_that_has_started_nothing_is_told_the_same_hosts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, told, mpiexec = platform.node(), tmp_path / "told", tmp_path / "mpiexec"
    mpiexec.write_text(MPIEXEC.format(told=told))
    mpiexec.chmod(0o700)
    draft = read_draft(workflow(tmp_path, ONE, m="def work(ctx): pass\n"))
    checked = check_options(draft)
    directory = RunDirectory.create(tmp_path / "runs", "w", tmp_path / "w.toml")
    nodes = [{"host": here, "ranks": [2]}, {"host": "lost", "ranks": [3]}]
    started = record("RunStarted", workflow="w", ranks=4, groups=["g"], host=here, nodes=nodes)
    with JournalWriter(directory.journal) as journal:
        journal.write(started)
    options = argparse.Namespace(file=tmp_path / "w.toml", trace=False, restarts=1)
    launcher = Mpiexec(mpiexec, "Open MPI", allow_run_as_root=True)
    run = _LaunchedRun(options, checked, draft, directory, launcher)
    monkeypatch.setattr(run, "_answering_hosts", lambda _: {here: True, "lost": False})
    display = PlainDisplay(directory)
    display.refresh()
    with LauncherSignals() as signals:
        assert run._restart_if_lost(plan_run(checked, draft, 4), 1, display, signals) == 1
    starts = told.read_text().splitlines()
    assert len(starts) == 2
    assert all(f"--host {here}:3" in start for start in starts), starts
