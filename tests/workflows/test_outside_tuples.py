"""The tuples of a run that goes on, for processes outside of it; and of one that has ended."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path

import numpy as np
import pytest
from support import diel as command
from support import started_diel, wait_until

import diel
from diel.errors import PayloadError, TupleError, TupleSocketError, TupleTimeout
from diel.run_tuples import RunTuples, SavedTuples

MODULE = """
import numpy as np

def run(ctx):
    ctx.tuples.tput(("array", 1), np.arange(3.0))
    ctx.tuples.tput("table", {"x": [1, "two", None]})
    ctx.tuples.tput("object", np.dtype)
    ctx.tuples.tget("begin", timeout=60)
    answer = ctx.tuples.tget("go")  # nobody in the run puts it
    ctx.tuples.tput("left", answer)

def last(ctx):
    return ctx.tuples.tread("left")
"""
FILE = """
[workflow]
name = "asked"

[[module]]
name = "first"
function = "./asked.py:run"

[[module]]
name = "last"
function = "./asked.py:last"

[[group]]
name = "ask"
modules = ["first"]

[[group]]
name = "then"
modules = ["last"]
depends = ["ask"]
"""


@pytest.mark.usefixtures("once")
def test_a_run_is_asked_from_outside(tmp_path: Path) -> None:
    (tmp_path / "asked.py").write_text(MODULE)
    (tmp_path / "asked.toml").write_text(FILE)
    with started_diel("run", "asked.toml", cwd=tmp_path) as started:
        wait_until(lambda: bool(list(tmp_path.glob("runs/*/tuples.json"))))
        (file,) = tmp_path.glob("runs/*/tuples.json")
        run = diel.open_run(file.parent)
        access = json.loads(file.read_text())
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        with run.tuples as tuples:
            assert isinstance(tuples, RunTuples)
            tuples.put("begin", "now")
            assert tuples.read(("array", diel.ANY)).tolist() == [0, 1, 2]
            assert tuples.take("table") == {"x": [1, "two", None]}
            with pytest.raises(TupleTimeout, match=r"read\('table'\): nothing matched within 0 s"):
                tuples.read("table", timeout_s=0)
            with pytest.raises(TupleSocketError, match=r"a value of type .* cannot be printed"):
                tuples.take("object")
            with pytest.raises(PayloadError, match=r"cannot be put from outside of a run"):
                tuples.put("go", object())
            asked = command("tuple", "--run", run.path, "read", "array/1", "--json", cwd=tmp_path)
            assert (asked.status, asked.stdout) == (0, "[0.0, 1.0, 2.0]\n"), asked.stderr
            file.write_text(json.dumps({**access, "host": "elsewhere"}))
            with pytest.raises(TupleSocketError, match=r"runs on elsewhere, and this is .*: ask"):
                diel.open_run(run.path).tuples.read("object")
            file.write_text(json.dumps({**access, "token": "0" * 32}))
            with pytest.raises(TupleSocketError, match=r"is not that of this"):
                diel.open_run(run.path).tuples.read("object")
            time.sleep(1.8)  # all modules wait: without the connection that would be a deadlock
            assert run.state == "running"
            tuples.put("go", np.arange(2))
            wait_until(lambda: run.state != "running")
        assert started.wait(timeout=30) == 0, started.communicate()
    assert not file.exists()
    assert not Path(access["address"]).parent.exists()
    # Afterwards the checkpoint that was saved behind the first group.
    saved = run.tuples
    assert isinstance(saved, SavedTuples)
    assert saved.read("left").tolist() == [0, 1]
    assert saved.read(("array", diel.ANY)).tolist() == [0, 1, 2]
    assert len(saved) == 3
    with pytest.raises(PayloadError, match=r"an object of numpy"):
        saved.read("object")
    with pytest.raises(TupleError, match=r"'table': nothing matches in the last checkpoint"):
        saved.read("table")
    for change in (lambda: saved.put("x", 1), lambda: saved.take("left")):
        with pytest.raises(TupleError, match=r"the run has ended"):
            change()
