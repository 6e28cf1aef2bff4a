"""The picture of a workflow: well-formed, escaped, boxes beside each other and inside of theirs."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st
from unit.workflow.samples import GOOD

from diel.workflow.drawing import Drawing, GroupBox, drawing_of_draft
from diel.workflow.load import draft_of_text, read_draft
from diel.workflow.svg import draw_svg

SVG = "{http://www.w3.org/2000/svg}"
Rectangle = tuple[float, float, float, float]


def read(drawing: Drawing, **how: Any) -> ElementTree.Element:
    return ElementTree.fromstring(draw_svg(drawing, **how))


def boxes(picture: ElementTree.Element) -> dict[str, Rectangle]:
    """Return left, upper, right and lower border of each group."""
    found = {}
    for group in picture.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect[@class='box']")
        if rect is not None:
            x, y, width, height = (float(rect.attrib[k]) for k in ("x", "y", "width", "height"))
            found[group.attrib["data-group"]] = (x, y, x + width, y + height)
    return found


def box(name: str, *depends: str, inside: Any = (), modules: Any = (("m", ""),)) -> GroupBox:
    return GroupBox(name, "", depends, () if inside else modules, inside)


def is_apart(one: Rectangle, other: Rectangle) -> bool:
    return one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]


def is_within(one: Rectangle, other: Rectangle) -> bool:
    return all(a > b for a, b in zip(one[:2], other[:2], strict=True)) and all(
        a < b for a, b in zip(one[2:], other[2:], strict=True)
    )


def test_names_are_text_wherever_they_stand() -> None:
    bad = '<script>"&\x07'
    one = GroupBox(bad, bad, (), ((bad, bad),), ())
    picture = read(Drawing(bad, ((one,),), ((bad, bad),)))
    shown = '<script>"& '
    assert [g.attrib["data-group"] for g in picture.iter(f"{SVG}g")] == [shown, shown, ""]
    assert {text.text for text in picture.iter(f"{SVG}text")} == {shown, f"↻ {shown}", None}
    assert not list(picture.iter(f"{SVG}script"))
    long = read(Drawing("w", ((box("x" * 100),),)))
    (title,) = long.iter(f"{SVG}title")
    assert title.text == "x" * 100


@st.composite
def workflows(draw: st.DrawFn, depth: int = 2, prefix: str = "g") -> tuple[Any, ...]:
    """Steps of groups, each waiting for any groups of the steps before it."""
    steps: list[tuple[GroupBox, ...]] = []
    names: list[str] = []
    for step in range(draw(st.integers(1, 3))):
        row = []
        for place in range(draw(st.integers(1, 3))):
            name = f"{prefix}{step}{place}"
            depends = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
            is_outer = depth > 0 and draw(st.booleans())
            inside = draw(workflows(depth - 1, f"{name}_")) if is_outer else ()
            row.append(box(name, *depends, inside=inside))
        names += [one.name for one in row]
        steps.append(tuple(row))
    return tuple(steps)


def flat(steps: Any, outer: str = "") -> Any:
    for step in steps:
        for one in step:
            yield one, outer
            yield from flat(one.inside, one.name)


@settings(max_examples=25, deadline=None)
@given(workflows())
def test_boxes_do_not_overlap_and_edges_pass_between_them(steps: Any) -> None:
    picture = read(Drawing("w", steps), on_page=True)
    places = boxes(picture)
    groups = {one.name: (one, outer) for one, outer in flat(steps)}
    assert places.keys() == groups.keys()
    _, _, width, height = map(float, picture.attrib["viewBox"].split())
    for name, (_, outer) in groups.items():
        assert is_within(places[name], places[outer] if outer else (0, 0, width, height))
    for one, other in combinations(groups, 2):
        if groups[one][1] == groups[other][1]:
            assert is_apart(places[one], places[other])
    edges = [g for g in picture.iter(f"{SVG}g") if g.attrib["class"] == "dependency"]
    assert len(edges) == sum(len(one.depends) for one, _ in flat(steps))
    for edge in edges:
        ends = edge.attrib["data-from"], edge.attrib["data-to"]
        path = edge[0].attrib["d"]
        # Where it runs straight down, it runs beside all boxes but the one that it leaves.
        for x, y, to_y in re.findall(r"([\d.]+) ([\d.]+) L[\d.]+ ([\d.]+)", path):
            line = float(x), float(y), float(x), float(to_y)
            for name, place in places.items():
                if name not in ends and groups[name][1] == groups[ends[0]][1]:
                    assert is_apart(line, place), (ends, name)


def test_a_file_with_mistakes_is_drawn_as_far_as_it_goes(folder: Path) -> None:
    """Circles, unknown names, and modules that no group has."""
    file = folder / "study.toml"
    file.write_text(
        GOOD.replace('depends = ["search"]', 'depends = ["search", "nowhere", 3]\ngroups = ["b"]')
        .replace('modules = ["master", "trainer"]', 'modules = ["master"]\ndepends = ["report"]')
        .replace("processes = 2", "processes = 0")
        + '[[group]]\nname = "b"\ngroups = ["c"]\n[[group]]\nname = "c"\ngroups = ["b"]\n'
    )
    drawing = drawing_of_draft(read_draft(file))
    assert drawing.in_no_group == (("trainer", ""),)
    groups = {one.name: outer for one, outer in flat(drawing.steps)}
    assert groups == {"search": "", "report": "", "b": "report", "c": "b"}
    assert sum(len(one.depends) for one, _ in flat(drawing.steps)) == 1
    assert boxes(read(drawing)).keys() == groups.keys()


def test_groups_nested_too_deep_are_drawn_and_said_to_be_wrong() -> None:
    groups = "".join(f'[[group]]\nname = "g{n}"\ngroups = ["g{n + 1}"]\n' for n in range(400))
    last = '[[group]]\nname = "g400"\nmodules = ["m"]\n'
    text = f'{groups}{last}[[module]]\nname = "m"\nexecutable = ["true"]\n'
    draft = draft_of_text(text, Path("/deep.toml"))
    assert ["inside more than" in problem.message for problem in draft.problems] == [True]
    assert len(boxes(read(drawing_of_draft(draft)))) == 401
