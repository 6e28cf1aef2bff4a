"""openDIEL's names in a run under MPI."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import diel, journal, workflow

MODULES = """
import numpy as np
from diel.iel import IEL_dist_tget, IEL_dist_tput, IEL_tget, IEL_tput

FIELD = np.arange(2**18, dtype="f8").reshape(2**9, 2**9)

def put(ctx):
    IEL_tput("greeting", "hello")
    IEL_dist_tput("field", FIELD)
    return IEL_tget(("answer", 1))

def get(ctx):
    assert IEL_tget("greeting") == "hello"
    assert (IEL_dist_tget("field") == FIELD).all()
    IEL_tput(("answer", 1), 42)
"""


@pytest.mark.sample
@pytest.mark.parametrize("servers", [1, 3])
def test_they_reach_the_tuple_space_of_the_module(servers: int, tmp_path: Path) -> None:
    toml = f"""
[tuple_space]
servers = {servers}
[[module]]
name = "put"
function = "./m.py:put"
[[module]]
name = "get"
function = "./m.py:get"
[[group]]
name = "g"
modules = ["put", "get"]
"""
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 0, finished.output
    records = journal(tmp_path)
    returned = {r["module"]: r["returned"] for r in records if r["event"] == "CopyFinished"}
    assert returned == {"put": 42, "get": None}
    assert records[-1]["tuples_left"] == 0
