"""What is known of a workflow's text while it is edited."""

from __future__ import annotations

from typing import Any

import pytest
from support import ROOT

from diel.errors import DielError
from diel.executive.placement.preview import SchedulePreview
from diel.gui.inspection import inspect, places, point_in_words
from diel.workflow.load import draft_of_text, read_draft

DIGITS = ROOT / "workflows" / "digits_grid.toml"


def test_a_sweep_is_previewed_and_its_options_have_models() -> None:
    pytest.importorskip("sklearn")
    found = inspect(read_draft(DIGITS))
    assert found.problems == []
    assert found.workflow is not None
    assert found.needs is not None
    (sweep,) = found.sweeps
    assert "trials, grid, tried by trainer" in found.sweeps[sweep]
    assert len(found.points[sweep]) == 5
    assert " = " in point_in_words(found.points[sweep][0])
    assert found.models.keys() == {module.name for module in found.workflow.modules}
    shown = places(found.workflow, ranks=8, per_node=3, shown_as="digits")
    assert {row[0] for row in shown.rows} == {"node 0", "node 1", "node 2"}
    assert ("node 0", "", "the executive", "", "0", "", "") in shown.rows
    with pytest.raises(DielError, match="ranks"):
        places(found.workflow, ranks=1, per_node=1, shown_as="digits")
    # As many as somebody may type: only the first nodes are looked at.
    looked: list[Any] = []
    rows = SchedulePreview.rows

    def counted(preview: SchedulePreview, ranks: Any) -> Any:
        looked.append(ranks)
        return rows(preview, ranks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SchedulePreview, "rows", counted)
        many = places(found.workflow, ranks=500, per_node=1, shown_as="digits")
    assert len(looked) == 64
    assert many.note == "and 436 nodes more"
    with pytest.raises(DielError, match="more than 100,000 ranks"):
        places(found.workflow, ranks=9_999_999, per_node=1, shown_as="digits")


def test_problems_of_options_are_there_with_those_of_the_file() -> None:
    text = DIGITS.read_text().replace("[module.options.space]", "sed = 1\n[module.options.space]")
    found = inspect(draft_of_text(text.replace("[[group]]", "[[grup]]"), DIGITS))
    assert [problem.message for problem in found.problems] == [
        'unknown key sed', 'unknown table grup',
    ]  # fmt: skip
    assert all(problem.remedy and problem.line for problem in found.problems)
    assert found.workflow is None
    assert "trainer" in found.models
