"""Groups in groups, iterations and ``until``, in real runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import diel, journal, records_of, run_dir, workflow

MODULES = """
def where(ctx):
    return list(ctx.iteration)

def converges(ctx):
    rounds = ctx.tuples.increment("rounds")
    if rounds == 3:
        ctx.tuples.tput(("converged", 1), "a value that stays")
    return rounds

def checks(ctx):
    assert ctx.tuples.tget_nowait(("converged", 1)) == "a value that stays"
    return ctx.tuples.tget_nowait("rounds")
"""

NEST = """
[[module]]
name = "a"
function = "./m.py:where"
processes = 2
[[module]]
name = "b"
function = "./m.py:where"
[[module]]
name = "shell"
executable = ["sh", "-c", "echo iteration $DIEL_ITERATION"]
[[module]]
name = "solver"
function = "./m.py:converges"
[[module]]
name = "checker"
function = "./m.py:checks"
[[group]]
name = "A"
modules = ["a"]
iterations = 5
[[group]]
name = "B"
modules = ["b", "shell"]
iterations = 3
[[group]]
name = "AB"
groups = ["A", "B"]
iterations = 3
[[group]]
name = "solve"
modules = ["solver"]
until = ["converged", 1]
[[group]]
name = "limited"
modules = ["b"]
until = "never"
iterations = 2
depends = ["solve"]
[[group]]
name = "check"
modules = ["checker"]
depends = ["limited", "AB"]
"""


def iterations(folder: Path, group: str, event: str = "GroupStarted") -> list[list[int]]:
    return [record["iteration"] for record in records_of(folder, event, group=group)]


@pytest.mark.thorough
@pytest.mark.usefixtures("once")
def test_nests_repeat_and_end_by_a_tag(tmp_path: Path) -> None:
    """On the fewest ranks that do, so that groups take turns."""
    finished = diel("run", "-n", 4, workflow(tmp_path, NEST, m=MODULES), cwd=tmp_path)
    assert finished.status == 0, finished.output
    for record in records_of(tmp_path, "GroupStarted"):
        ranks = [rank for those in record.get("placement", {}).values() for rank in those]
        assert set(ranks) <= {2, 3}
    for group, inner in (("A", 5), ("B", 3)):
        expected = [[outer, one] for outer in range(3) for one in range(inner)]
        assert iterations(tmp_path, group) == expected
        assert iterations(tmp_path, group, "GroupFinished") == expected
        (module,) = group.lower()
        told = [record["returned"] for record in records_of(tmp_path, "CopyFinished", group=group)]
        assert [one for one in told if one is not None] == expected, module
    assert iterations(tmp_path, "AB") == [[0], [1], [2]]
    assert iterations(tmp_path, "AB", "GroupFinished") == [[0], [1], [2]]
    log = (run_dir(tmp_path) / "logs" / "shell.0.0.log").read_text()
    assert log.split("\n")[:4] == [f"iteration {one}" for one in ("0.0", "0.1", "0.2", "1.0")]
    # until, without and with a limit
    ends = {
        group: [record["ended_by"] for record in records_of(tmp_path, "GroupFinished", group=group)]
        for group in ("AB", "solve", "limited")
    }
    assert ends == {
        "AB": [None, None, "iterations"],
        "solve": [None, None, "until"],
        "limited": [None, "iterations"],
    }
    (checked,) = records_of(tmp_path, "CopyFinished", module="checker")
    assert checked["returned"] == 3
    assert journal(tmp_path)[-1]["tuples_left"] == 0
    assert "group solve finished after 3 iterations: the tuple that ends it" in finished.stdout
    assert "group AB finished after 3 iterations" in finished.stdout
