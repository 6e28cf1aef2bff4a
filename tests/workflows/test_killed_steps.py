"""Tasks and elements of foreach: whoever is killed, what is recorded as done is not done again."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest
from support import THOROUGH, diel, killed_diel, records_of, run_dir, workflow

from diel.run.directory import RunDirectory
from diel.run.tasks import _merged

KILLS = 30 if THOROUGH else 2
COUNT = 64 if THOROUGH else 12
"""So many tasks there are, and so many elements of two steps."""
WORKFLOW = f"""\
[[module]]
name = "task"
executable = ["sh", "step.sh", "task", "{{task}}", "tasks"]
tasks = {COUNT}
copies = 2
time_limit = 100
[[module]]
name = "first"
executable = ["sh", "step.sh", "first", "${{n}}", "{{element_dir}}"]
[[module]]
name = "second"
executable = ["sh", "step.sh", "second", "${{n}}", "elements", "{{element_dir}}"]
[[module]]
name = "sum"
executable = ["sh", "-c", "for i in tasks elements; do cat $i/* | sort -n > $i.txt; done"]
[[module]]
name = "prepare"
executable = ["true"]
[[group]]
name = "before"
modules = ["prepare"]
[[group]]
name = "each"
modules = ["task"]
depends = ["before"]
when = "outcome('before') == 'finished'"
[[group]]
name = "cases"
groups = ["begin", "square"]
foreach = "cases.csv"
at_once = 2
[[group]]
name = "begin"
modules = ["first"]
[[group]]
name = "square"
modules = ["second"]
depends = ["begin"]
[[group]]
name = "together"
modules = ["sum"]
depends = ["each", "cases"]
"""
STEP = """\
echo >> ran/$1.$2; sleep 0.3
case $1 in
    first) echo $2 > $3/$2;;
    task) echo $(($2 * $2)) > $3/$2;;
    second) n=$(cat $4/$2); echo $((n * n)) > $3/$2;;
esac
"""


class KilledSteps:
    """A run in a folder, and how often each of its steps had been begun when its end was noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ended: dict[str, int] = {}
        for name in ("ran", "tasks", "elements"):
            (folder / name).mkdir()
        (folder / "step.sh").write_text(STEP)
        (folder / "cases.csv").write_text("\n".join(["n", *map(str, range(COUNT))]))
        self.file = workflow(folder, WORKFLOW)

    def edit(self, number: int) -> None:
        """Edit what may change while a run is away: a comment, and a limit of time."""
        text = WORKFLOW.replace("time_limit = 100", f"time_limit = {100 + number}")
        self.file.write_text(f"# Edited {number} times.\n{text}")

    def executions(self, *kinds: str) -> int:
        files = [file for kind in kinds for file in self.folder.glob(f"ran/{kind}.*")]
        return sum(len(file.read_text()) for file in files)

    def note_ended(self) -> None:
        """Note what is recorded as done: none of it has been begun again since it was."""
        tasks = _merged(RunDirectory(run_dir(self.folder)).tasks.glob("*.jsonl"))
        done = [f"task.{task}" for several in tasks.values() for task in several]
        modules = [record["module"] for record in records_of(self.folder, "CopyFinished")]
        done += [name.replace("-", ".") for name in modules if "-" in name]
        for step in done:
            times = len((self.folder / "ran" / step).read_text())
            assert self.ended.setdefault(step, times) == times, f"{step} was repeated"


@pytest.mark.slow
def test_what_has_ended_is_not_done_twice_whoever_is_killed(tmp_path: Path) -> None:
    """A run is killed at moments that a seed draws: all of it, or one process; then resumed.

    Meanwhile its file is edited each time.
    """
    draw = random.Random(7)
    steps = KilledSteps(tmp_path)
    for kill in range(KILLS):
        tasks = steps.executions("task") + draw.randint(1, 2)
        elements = steps.executions("first", "second") + draw.randint(1, 2)
        killed_diel(
            *(["run", "--resume", run_dir(tmp_path)] if kill else ["run", steps.file]),
            cwd=tmp_path,
            when=lambda: (
                steps.executions("task") >= tasks  # noqa: B023
                and steps.executions("first", "second") >= elements  # noqa: B023
            ),
            delay_s=draw.random() * 0.15,
            draw=draw,
        )
        steps.note_ended()
        steps.edit(kill + 1)
        if len(steps.ended) == 3 * COUNT:
            break
    print(f"{kill + 1} kills, {len(steps.ended)} of {3 * COUNT} steps noted")
    assert steps.ended or not THOROUGH
    finished = diel("run", "--resume", run_dir(tmp_path), cwd=tmp_path)
    assert finished.status == 0, finished.output
    steps.note_ended()
    assert len(steps.ended) == 3 * COUNT
    for what in ("tasks", "elements"):
        squares = map(int, (tmp_path / f"{what}.txt").read_text().split())
        assert list(squares) == [number**2 for number in range(COUNT)]
    with (run_dir(tmp_path) / "elements/cases.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["n"]), row["outcome"]) for row in rows] == [
        (number, "finished") for number in range(COUNT)
    ]
