"""The snippets in the documentation do what the text says."""

from __future__ import annotations

import ast
import builtins
import itertools
import re
import runpy
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from support import ROOT

from diel.testing import TupleSpace
from diel.workflow.boundary import Boundary
from dnn.backend import Ops, has_numba
from dnn.backend.cuda.ops import CudaOps
from dnn.graph.operation import OPERATIONS
from dnn.graph.passes import PASSES, default_passes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAGES = [ROOT / "docs" / f"{name}.md" for name in ("coupling", "meshes", "streams", "tuple-space")]
DNN_PAGE = ROOT / "docs" / "dnn.md"
GPU_PAGE = ROOT / "docs" / "gpu.md"
STEP_PAGE = ROOT / "docs" / "training-step.md"
DISTRIBUTED_PAGE = ROOT / "docs" / "distributed.md"
DNN_PAGES = [DNN_PAGE, GPU_PAGE, STEP_PAGE, DISTRIBUTED_PAGE]
ALL_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(
    r"^```python(?: raises=(\w+))?(?: needs=(\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
EXCERPT = re.compile(r"^```py (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CALLS = re.compile(r"^With Numba the calls .*?^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOML = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    """A block of Python in a page."""

    page: Path
    line: int
    source: str
    raises: str | None

    def run(self, names: dict[str, Any]) -> None:
        """Run it among the names that the blocks before it have left; check those in comments."""
        self._execute(names)
        for dotted in re.findall(r"\b[a-z]\w*(?:\.[a-z]\w*)+\b", self.comments):
            first, *rest = dotted.removesuffix(".csv").split(".")
            value = names.get(first)
            for name in rest if first in names else ():
                assert hasattr(value, name), f"{self}: a comment names {dotted}"
                value = getattr(value, name)

    @property
    def comments(self) -> str:
        """All its comments, a line each."""
        tokens = tokenize.generate_tokens(StringIO(self.source).readline)
        return "\n".join(token.string for token in tokens if token.type == tokenize.COMMENT)

    def _execute(self, names: dict[str, Any]) -> None:
        # With the lines before it, so that a traceback shows the page.
        code = compile("\n" * self.line + self.source, str(self.page), "exec")
        raised = None
        try:
            exec(code, names)
        except Exception as error:
            raised = error
        if (raised and type(raised).__name__) != self.raises:
            raise AssertionError(f"{self}: {raised!r}, not {self.raises}") from raised

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def snippets(page: Path, *, with_all: bool = False) -> Iterator[Snippet]:
    """Yield the blocks of a page; unless with all, those whose library is installed."""
    text = page.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        if with_all or found[2] is None or find_spec(found[2]):  # a library that it needs
            yield Snippet(page, line, found[3], found[1])


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_snippets_of_a_page(page: Path, servers: int, tmp_path: Path) -> None:
    with TupleSpace(servers=servers) as space:
        names: dict[str, Any] = {"__name__": "page"}
        names["ctx"] = space.context(module="page", run_dir=tmp_path)
        for snippet in snippets(page):
            snippet.run(names)


@pytest.mark.parametrize("page", DNN_PAGES, ids=lambda page: page.stem)
def test_the_snippets_of_the_training_core(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("safetensors", "sklearn"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    # What a page registers is gone after it.
    with patch.dict(OPERATIONS), patch.dict(PASSES):
        for snippet in snippets(page):
            snippet.run(names)
    if page == STEP_PAGE and has_numba():
        check_calls(page, str(names["plan"].plan))


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.stem)
def test_functions_that_comments_name_are_there(page: Path) -> None:
    """A call in a comment, such as ``# dot() for Graphviz``: some class or file defines it."""
    known = set(dir(builtins)) | defined_names()
    for snippet in snippets(page, with_all=True):
        own = {name.rpartition(".")[2] for name in definitions(ast.parse(snippet.source))}
        for called in re.findall(r"(\w+)\(", snippet.comments):
            assert called in known | own, f"{snippet}: a comment calls {called}()"


@cache
def defined_names() -> set[str]:
    """Return the names of all functions and classes of the packages."""
    files = (file for name in ("diel", "dnn", "modules") for file in (ROOT / name).rglob("*.py"))
    pattern = re.compile(r"^ *(?:def|class) (\w+)", re.MULTILINE)
    return {name for file in files for name in pattern.findall(file.read_text(encoding="utf-8"))}


@pytest.mark.skipif(not has_numba(), reason="Numba is not installed: there are no compiled loops")
def test_the_table_of_passes_is_complete() -> None:
    from dnn.backend.cpu.ops import CpuOps

    table = DNN_PAGE.read_text(encoding="utf-8").partition("| pass |")[2].partition("\n\n")[0]
    rows = [line.strip("|").split(" | ") for line in table.splitlines()[2:]]
    runs = {name: when.strip() for names, _, when in rows for name in re.findall(r"`(\w+)`", names)}
    assert runs.keys() == PASSES.keys()
    for name, when in runs.items():
        of = {"compiled loops": name in CpuOps.passes, "GPU": name in CudaOps.passes}
        found = ", ".join(device for device, has in of.items() if has)
        expected = "always" if name in default_passes(Ops()) else found or "on request"
        assert when == expected, name


@pytest.mark.parametrize(
    "page", [page for page in ALL_PAGES if page.stem != "workflow-file"], ids=lambda page: page.stem
)
def test_no_page_says_a_thing_twice(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)
    items = re.findall(r"^ *- (.{40,}?)(?=^ *- |^\S|\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    sets = [frozenset(re.findall(r"\w+", item.lower())) for item in items]
    for first, second in itertools.combinations(range(len(items)), 2):
        common = len(sets[first] & sets[second])
        is_like = common > 0.8 * max(len(sets[first]), len(sets[second]))
        assert not is_like, f"{page.name}: {items[first]!r} and {items[second]!r}"


def check_calls(page: Path, calls: str) -> None:
    """Fail unless the page shows these calls, each perhaps with a note behind it."""
    (shown,) = CALLS.findall(page.read_text(encoding="utf-8"))
    for line, call in zip(shown.splitlines(), calls.splitlines(), strict=True):
        assert line == call or line.startswith(f"{call}  "), f"{page.name} shows {line!r}: {call!r}"


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield prefix + node.name
            yield from definitions(node, f"{prefix}{node.name}.")


def test_the_walk_through_a_step_leads_past_what_is_there() -> None:
    text = STEP_PAGE.read_text(encoding="utf-8")
    stations = re.findall(r"`([\w/]+\.py)::([\w.]+)`", text)
    assert len(stations) > 40
    assert text.count("::") == len(stations) + 1  # the page's first lines say what the form means
    for file, name in stations:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in set(definitions(tree)), f"{file}::{name}"
    excerpts = EXCERPT.findall(text)
    assert len(excerpts) == 1
    for file, excerpt in excerpts:
        assert excerpt in (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [*PAGES, *DNN_PAGES], ids=lambda page: page.stem)
def test_no_snippet_is_overlooked(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert (
        len(list(FENCE.finditer(text)))
        == text.count("```python")
        > (1 if page in DNN_PAGES or page.stem == "meshes" else 4)
    )


def test_excerpts_are_in_their_files() -> None:
    found = [one for page in PAGES for one in EXCERPT.findall(page.read_text(encoding="utf-8"))]
    assert len(found) == 6
    for file, text in found:
        assert text in (ROOT / file).read_text(encoding="utf-8")


def test_boundaries_in_the_documentation_are_valid() -> None:
    page = (ROOT / "docs" / "coupling.md").read_text(encoding="utf-8")
    tables = [table for text in TOML.findall(page) for table in tomllib.loads(text)["boundary"]]
    assert [Boundary.model_validate(table).name for table in tables] == ["wall"]


def test_the_page_on_architecture_names_files_that_are_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:diel|dnn|modules)/[\w/]+\.py)`", text))
    assert len(paths) > 50
    assert [path for path in sorted(paths) if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize(("page", "text"), [("MAP", "page"), ("ARCHITECTURE", "architecture")])
def test_the_map_of_the_code_is_true(page: str, text: str) -> None:
    """Its tables are made from the first lines of the files."""
    script = runpy.run_path(str(ROOT / "docs" / "map.py"))
    written = script[page].read_text(encoding="utf-8")
    assert script[text]() == written, f"write it anew: {script['COMMAND']}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
