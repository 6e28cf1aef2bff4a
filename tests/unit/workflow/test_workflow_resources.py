"""Resources that groups share: what modules take is compared with what there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from diel import load_workflow
from diel.errors import WorkflowError

FILE = """
[workflow]
resources = { licence = 2, "disk" = 5 }
[[module]]
name = "a"
executable = ["true"]
copies = 2
resources = { licence = 1 }
[[module]]
name = "b"
executable = ["true"]
copies = "fill"
resources = { disk = 2 }
[[group]]
name = "g"
modules = ["a", "b"]
"""


def problems(tmp_path: Path, text: str, *given: str) -> list[str]:
    file = tmp_path / "w.toml"
    file.write_text(text)
    try:
        load_workflow(file, given)
    except WorkflowError as error:
        return [f"{problem.path}: {problem}" for problem in error.problems]
    return []


def test_enough_of_everything(tmp_path: Path) -> None:
    assert problems(tmp_path, FILE) == []
    assert problems(tmp_path, FILE, "workflow.resources.licence=3", "module.a.copies=3") == []


def test_a_group_that_could_never_start(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, FILE, "module.a.copies=3")
    assert "group[0].modules: " in found
    assert "its copies take 3 licence together, and there are 2: it could never start" in found
    (found,) = problems(tmp_path, FILE, "module.b.resources.disk=6")
    assert "take 6 disk together, and there are 5" in found


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("licens", 'did you mean "licence"?'),
        ("tape", "it has licence, disk; say how many there are: resources = { tape = 1 } in"),
    ],
)
def test_a_resource_that_is_not_there(tmp_path: Path, name: str, remedy: str) -> None:
    (found,) = problems(tmp_path, FILE.replace("{ licence = 1 }", f"{{ {name} = 1 }}"))
    assert f"module[0].resources.{name}: " in found
    assert f'[workflow] has no resource "{name}"' in found
    assert remedy in found


@pytest.mark.parametrize("value", ["0", "-1", "1.5", '"two"', "true", "[1]"])
def test_what_is_no_number_of_it(tmp_path: Path, value: str) -> None:
    text = FILE.replace("licence = 2,", f"licence = {value},")
    found = problems(tmp_path, text)
    assert found
    assert all("resources.licence" in one for one in found)
