"""Elements of foreach: whatever fails or is killed, what has ended well is not done again."""

from __future__ import annotations

import csv
import json
import random
import time
from pathlib import Path
from typing import Any

from support import (
    ROOT,
    THOROUGH,
    diel,
    kill_all_in,
    processes_in,
    records_of,
    run_dir,
    started_diel,
    wait_until,
    workflow,
)

from diel.run.directory import RunDirectory

KILLS = 30 if THOROUGH else 2
ELEMENTS = 44 if THOROUGH else 12
TABLE = "elements/cases.csv"
KILLED = """\
[[module]]
name = "first"
executable = ["sh", "-c", "echo >> ran/first.${n}; sleep 0.1; echo ${n} > '{element_dir}/n'"]
[[module]]
name = "second"
executable = ["sh", "square.sh", "${n}", "{element_dir}"]
[[module]]
name = "sum"
executable = ["sh", "-c", "cat out/* | sort -n > sum.txt; echo >> ran/sum"]
[[group]]
name = "cases"
groups = ["prepare", "square"]
foreach = "cases.csv"
at_once = 2
[[group]]
name = "prepare"
modules = ["first"]
[[group]]
name = "square"
modules = ["second"]
depends = ["prepare"]
[[group]]
name = "together"
modules = ["sum"]
depends = ["cases"]
"""
SQUARE = "echo >> ran/second.$1; sleep 0.1; n=$(cat $2/n); echo $((n * n)) > out/$1"


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def is_end_of(record: dict[str, Any], group: str) -> bool:
    return record["event"] == "GroupFinished" and record["group"] == group


def test_what_has_ended_is_not_done_twice_whenever_the_run_is_killed(tmp_path: Path) -> None:
    draw = random.Random(11)
    for folder in ("ran", "out"):
        (tmp_path / folder).mkdir()
    (tmp_path / "square.sh").write_text(SQUARE)
    numbers = "\n".join(map(str, range(ELEMENTS)))
    (tmp_path / "cases.csv").write_text(f"n\n{numbers}\n")
    file = workflow(tmp_path, KILLED)
    ended: dict[str, int] = {}

    def executions(name: str) -> int:
        ran = tmp_path / "ran" / name
        return len(ran.read_text().splitlines()) if ran.exists() else 0

    def all_executions() -> int:
        return sum(len(ran.read_text().splitlines()) for ran in (tmp_path / "ran").iterdir())

    def note_ended() -> None:
        for record in records_of(tmp_path, "CopyFinished"):
            if "-" in record["module"]:
                name, _, number = record["module"].rpartition("-")
                times = ended.setdefault(f"{name}.{number}", executions(f"{name}.{number}"))
                assert executions(f"{name}.{number}") == times, record

    kills = 0
    while kills < KILLS and not executions("sum"):
        line = ["run", "--resume", run_dir(tmp_path)] if kills else ["run", file]
        enough = all_executions() + draw.randint(2, 3)
        with started_diel(*line, cwd=tmp_path) as started:
            wait_until(lambda: started.poll() is not None or all_executions() >= enough)  # noqa: B023
            time.sleep(draw.random() * 0.25)
            kill_all_in(tmp_path)
        wait_until(lambda: not processes_in(tmp_path))
        note_ended()
        kills += 1
    print(f"{kills} kills, {all_executions()} executions of {2 * ELEMENTS}, {len(ended)} noted")
    if not executions("sum"):
        finished = diel("run", "--resume", run_dir(tmp_path), cwd=tmp_path)
        assert finished.status == 0, finished.output
    note_ended()
    assert len(ended) == 2 * ELEMENTS
    squares = (tmp_path / "sum.txt").read_text().split()
    assert [int(square) for square in squares] == [number**2 for number in range(ELEMENTS)]
    table = rows_of(run_dir(tmp_path) / TABLE)
    assert [row["outcome"] for row in table] == ["finished"] * ELEMENTS
    assert [int(row["n"]) for row in table] == [*range(ELEMENTS)]


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
