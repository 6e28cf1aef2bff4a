"""Messages of commands as the page shows them: what to press or fill in, no flags."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diel.errors import DielError
from diel.executive.batch_scripts import batch_script, job_for
from diel.executive.placement.planning import plan_groups
from diel.executive.rank_launcher import Mpiexec
from diel.gui.processes import in_words_of_the_page
from diel.workflow.load import load_workflow
from diel.workflow.model import Workflow

FLOW = """
[[module]]
name = "a"
executable = ["true"]
copies = "fill"

[[module]]
name = "b"
executable = ["true"]

[[group]]
name = "g"
modules = ["a", "b"]
"""


def as_root() -> None:
    Mpiexec(Path("mpiexec"), "Open MPI", False).line(2, as_root=True, environment={})


def of_script(flow: Workflow, **more: Any) -> Callable[[], object]:
    job = job_for(flow, "a.toml", ranks=4)
    return lambda: batch_script(job, "a.toml", scheduler="pbs", requeue=1, **more)


def test_what_messages_recommend_is_what_the_page_has(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(FLOW)
    flow = load_workflow(tmp_path / "a.toml")
    cases: list[tuple[Callable[[], object], str]] = [
        (as_root, 'with the button "Start as root"'),
        (lambda: plan_groups(flow, 3, "a.toml"), 'write 4 or more into "MPI ranks"'),
        (lambda: job_for(flow, "a.toml"), 'fill in "MPI ranks", or "nodes" and "ranks per node"'),
        (of_script(flow), "press Download"),
        (of_script(flow, script_file=tmp_path / "job.sh"), 'fill in "time limit"'),
    ]
    for action, words in cases:
        with pytest.raises(DielError) as raised:
            action()
        shown = in_words_of_the_page(str(raised.value))
        assert words in shown
        assert re.search(r"(^|[\s(])--?[a-z]", shown) is None, shown


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("kept: diel run --resume runs/a does it",
         "kept: the button Resume on the page of the run does it"),
        ("sweep x lies before the run's last checkpoint, where diel run --resume goes on: start it",
         "sweep x lies before the run's last checkpoint, where Resume goes on: start it"),
        ("an end of a line -- and more", "an end of a line -- and more"),
        ("nothing else", "nothing else"),
    ],
)  # fmt: skip
def test_other_words_stay(message: str, shown: str) -> None:
    assert in_words_of_the_page(message) == shown


def test_a_flag_that_the_page_has_no_field_for_is_called_one_of_the_command_line() -> None:
    shown = in_words_of_the_page("say --launcher mpiexec")
    assert shown.startswith("say --launcher mpiexec (")
    assert "is for the command line" in shown
