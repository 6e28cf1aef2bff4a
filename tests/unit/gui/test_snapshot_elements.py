from __future__ import annotations

from diel.executive.plans import GroupPlan, ModulePlan, recorded
from diel.gui.snapshot import _bars, _groups
from diel.run.records import Elements, GroupFinished, GroupSkipped, GroupStarted, RunStarted
from diel.run.status import StatusView
from diel.run.view import RunView


def test_elements_are_shown_together() -> None:
    names = [f"cases-{number}" for number in range(3)]
    elements = Elements("cases", ["n"], [[1], [2], [3]], None, 2)
    plans = [GroupPlan("cases", groups=tuple(names), elements=elements)]
    for number, name in enumerate(names):
        plans.append(GroupPlan(name, groups=(f"a-{number}", f"b-{number}")))
        plans.append(GroupPlan(f"a-{number}", (ModulePlan(f"m-{number}", 1, 1),)))
        last = (ModulePlan(f"n-{number}", 1, 1),)
        plans.append(GroupPlan(f"b-{number}", last, depends=(f"a-{number}",)))
    view = RunView()
    view.apply(RunStarted(workflow="w", ranks=4, servers=[1], **recorded(plans)))
    assert {*_groups(view, is_over=False)} == {"cases", "a", "b"}
    view.apply(GroupStarted(group="cases", iteration=(0,), groups=names))
    for name in (*names, "a-0", "a-1"):
        view.apply(GroupStarted(group=name, iteration=(0, 0, 0)))
    view.apply(GroupFinished(group="a-0", iteration=(0, 0, 0), ended_by="iterations"))
    view.apply(
        GroupFinished(group="a-1", iteration=(0, 0, 0), ended_by="iterations", outcome="failed")
    )
    view.apply(GroupSkipped(group="b-1", iteration=(0, 0, 0), condition="false", values={}))
    view.apply(
        GroupFinished(group="cases-1", iteration=(0, 0), ended_by="iterations", outcome="failed")
    )
    rows = _groups(view, is_over=False)
    assert rows == {
        "cases": ["running", "1 of 3"],
        "a": ["waiting", "2 of 3"],
        "b": ["waiting", "1 of 3"],
    }
    assert _bars(view, StatusView()) == [["cases", 1, 3, "1 failed"]]
    assert [view.name_in_file(name) for name in ("cases", "cases-1", "b-2")] == [
        "cases",
        "cases",
        "b",
    ]
    assert view.name_in_file("b-2", "n-2") == "n"
