"""Elements of foreach: whatever fails, what has ended well is not done again."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from support import ROOT, diel, run_dir, workflow

from diel.run.directory import RunDirectory

TABLE = "elements/cases.csv"


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def is_end_of(record: dict[str, Any], group: str) -> bool:
    return record["event"] == "GroupFinished" and record["group"] == group


def test_failed_elements_are_repeated_and_what_came_after(tmp_path: Path) -> None:
    file = workflow(
        tmp_path,
        """\
[[module]]
name = "work"
executable = ["sh", "-c", "echo ${n} >> ran; test -e mended || test ${n} != 2 || exit 3"]
[[module]]
name = "count"
executable = ["sh", "-c", "grep -c finished '{run_dir}/elements/cases.csv' >> counts"]
[[group]]
name = "cases"
modules = ["work"]
foreach = { n = [1, 2, 3] }
max_failures = 1
[[group]]
name = "after"
modules = ["count"]
depends = ["cases"]
""",
    )
    first = diel("run", file, cwd=tmp_path)
    assert first.status == 0, first.output
    assert "group cases finished, 1 of 3 elements failed" in first.stdout
    assert "to repeat what failed: diel run --resume" in first.stdout
    (tmp_path / "mended").touch()
    again = diel("run", "--resume", run_dir(tmp_path), cwd=tmp_path)
    assert again.status == 0, again.output
    assert "elements failed" not in again.stdout
    assert sorted((tmp_path / "ran").read_text().split()) == ["1", "2", "2", "3"]
    assert (tmp_path / "counts").read_text().split() == ["2", "3"]
    assert [row["outcome"] for row in rows_of(run_dir(tmp_path) / TABLE)] == ["finished"] * 3
    nothing = diel("run", "--resume", run_dir(tmp_path), cwd=tmp_path)
    assert "nothing is left to run" in nothing.stdout
    # As if it had been killed when the end of the elements was recorded, and not yet their table.
    directory = RunDirectory(run_dir(tmp_path))
    lines = directory.journal.read_text().splitlines(keepends=True)
    ended = max(n for n, line in enumerate(lines) if is_end_of(json.loads(line), "cases"))
    directory.journal.write_text("".join(lines[: ended + 1]))
    (run_dir(tmp_path) / TABLE).unlink()
    assert diel("run", "--resume", run_dir(tmp_path), cwd=tmp_path).status == 0
    assert (tmp_path / "counts").read_text().split() == ["2", "3", "3"]


def test_a_run_goes_on_with_the_elements_that_it_began_with(tmp_path: Path) -> None:
    file = workflow(
        tmp_path,
        """\
[[module]]
name = "work"
executable = ["sh", "-c", "test -e mended || test ${n} != 2"]
[[group]]
name = "cases"
modules = ["work"]
foreach = "n.csv"
""",
    )
    table = tmp_path / "n.csv"
    table.write_text("n\n1\n2\n")
    assert diel("run", file, cwd=tmp_path).status == 1
    (tmp_path / "mended").touch()
    table.write_text("n\n1\n2\n3\n")
    refused = diel("run", "--resume", run_dir(tmp_path), cwd=tmp_path)
    assert refused.status == 2
    assert "foreach of group cases is not what it was" in refused.stderr
    assert "element 2 was none, and is [3]" in refused.stderr
    table.write_text("n\n1\n2\n")
    assert diel("run", "--resume", run_dir(tmp_path), cwd=tmp_path).status == 0


COUPLED = """\
def heat(ctx):
    ctx.send(ctx.element.values["n"], "flow")
    if ctx.element.values["n"] == 2:
        raise ValueError("two")
    return ctx.recv("flow", timeout=60)


def flow(ctx):
    assert (ctx.module, ctx.copies_of) == ("flow", {"heat": 1, "flow": 1})
    n = ctx.recv("heat", timeout=60)
    if n == 2:
        ctx.recv("heat")  # never sent: it is left with the other
    (ctx.element_dir / "n").write_text(str(n))
    ctx.send(10 * n, "heat")
"""


def test_modules_of_an_element_know_each_other_by_the_names_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "coupled.py").write_text(COUPLED)
    file = workflow(
        tmp_path,
        """\
[[module]]
name = "heat"
function = "./coupled.py:heat"
[[module]]
name = "flow"
function = "./coupled.py:flow"
[[group]]
name = "cases"
modules = ["heat", "flow"]
foreach = { n = [1, 2, 3] }
max_failures = 1
""",
    )
    ended = diel("run", file, cwd=tmp_path)
    assert ended.status == 0, ended.output
    rows = rows_of(run_dir(tmp_path) / TABLE)
    assert [(row["outcome"], row["returned"]) for row in rows] == [
        ("finished", "10"),
        ("failed", ""),
        ("finished", "30"),
    ]
    written = sorted((run_dir(tmp_path) / "elements").glob("*/n"))
    assert [(file.parent.name, file.read_text()) for file in written] == [
        ("cases-0", "1"),
        ("cases-2", "3"),
    ]


def test_too_many_failures_end_the_run(tmp_path: Path) -> None:
    file = ROOT / "workflows/oscillator.toml"
    ended = diel("run", file, "--set", "group.cases.max_failures=0", cwd=tmp_path)
    assert ended.status == 1
    assert "1 of the 4 elements of cases have failed, and max_failures is 0" in ended.output
