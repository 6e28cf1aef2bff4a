"""A user's own folder ``modules`` beside the workflow file breaks neither theirs nor ours."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import diel, records_of

TOML = """\
[[module]]
name = "theirs"
function = "modules.solver:run"
[[module]]
name = "master"
function = "modules.master:run"
options.space = { learning_rate = [0.1, 0.2], epochs = 1, hidden = [[4]] }
[[module]]
name = "trainer"
function = "modules.trainer:run"
options = { dataset = "digits" }
[[group]]
name = "both"
modules = ["theirs", "master", "trainer"]
[[group]]
name = "again"
modules = ["theirs"]
depends = ["both"]
"""


@pytest.mark.parametrize("with_init", [True, False])
def test_both_packages_work_in_one_run(with_init: bool, tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    package = tmp_path / "modules"
    package.mkdir()
    (package / "solver.py").write_text(
        "from modules.space import ANSWER\ndef run(ctx):\n    return ANSWER\n"
    )
    # A name that ours has too, with something else in it.
    (package / "space.py").write_text("ANSWER = 42\n")
    if with_init:
        (package / "__init__.py").write_text("")
    (tmp_path / "w.toml").write_text(TOML)
    finished = diel("run", "w.toml", cwd=tmp_path)
    assert finished.status == 0, finished.output
    returned = [
        (record["module"], record["returned"])
        for record in records_of(tmp_path, "CopyFinished", module="theirs")
    ]
    assert returned == [("theirs", 42), ("theirs", 42)]
    assert "2 best of 2 by highest accuracy" in finished.stdout
