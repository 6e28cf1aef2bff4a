"""A workflow as a drawing: the same tree as text, for Graphviz and for Mermaid."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import ROOT, status_of

from diel.workflow.drawing import draw_dot, draw_mermaid, draw_text, drawing_of
from diel.workflow.load import load_workflow
from diel.workflow.model import Group, Module, Workflow

STUDY = Workflow(
    name="study",
    modules=(
        Module(name="master", function="m:f"),
        Module(name="trainer", function="m:f", copies="fill", gpus=1),
        Module(name="solver", function="m:f", copies=4, processes=2, threads=3),
        Module(name="plot", function="m:f", gpus=2),
        Module(name="view", function="m:f", gpus=0.25),
    ),
    groups=(
        Group(name="end", modules=["plot", "view"], depends=["round", "beside"]),
        Group(name="round", groups=["search", "node"], iterations=3, until='a "b"\\'),
        Group(name="search", modules=["master", "trainer"], iterations=1),
        Group(name="node", modules=["solver"], depends=["search"], until=("c", 1)),
        Group(name="beside", modules=["solver", "plot"], iterations=5),
    ),
    file=Path("/study.toml"),
)


def test_text_shows_steps_groups_and_modules() -> None:
    assert draw_text(drawing_of(STUDY)) == textwrap.dedent(
        """\
        study

          round  ↻ 3 times, until "a \\"b\\"\\\\"
          │ search
          │ ├─ master
          │ └─ trainer  as many copies as fit x 1 GPU
          │   ▼
          │ node  ↻ until ["c", 1]  after search
          │ └─ solver  4 copies x 2 ranks x 3 threads
          beside  ↻ 5 times
          ├─ solver  4 copies x 2 ranks x 3 threads
          └─ plot    2 GPUs
            ▼
          end  after round, beside
          ├─ plot  2 GPUs
          └─ view  1/4 GPU"""
    )


def test_dot_has_a_cluster_for_a_group_of_groups() -> None:
    text = draw_dot(drawing_of(STUDY))
    assert 'subgraph "cluster_g1" {' in text
    # Keywords of the language are names of groups like any others.
    assert 'g3 [label="node  until [\\"c\\", 1]\\lsolver: 4 copies x 2 ranks x 3 threads\\l"];' in (
        line.strip() for line in text.splitlines()
    )
    edges = re.findall(r"^ *(g\d) -> (g\d)(.*);$", text, re.MULTILINE)
    assert edges == [
        ("g2", "g3", ""),
        ("g3", "g5", ' [ltail="cluster_g1"]'),
        ("g4", "g5", ""),
    ]


def graphviz(text: str) -> Any:
    program = shutil.which("dot")
    if program is None:
        pytest.skip("Graphviz is not installed")
    done = subprocess.run(
        [program, "-Tdot_json"], input=text, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_graphviz_reads_it() -> None:
    read = graphviz(draw_dot(drawing_of(STUDY)))
    assert read["name"] == "study"
    labels = {one["name"]: one["label"] for one in read["objects"]}
    assert labels["cluster_g1"] == 'round  3 times, until "a \\"b\\"\\\\"'.replace("\\", "\\\\")
    assert set(labels) == {"cluster_g1", "g2", "g3", "g4", "g5"}
    assert len(read["edges"]) == 3


def test_mermaid_has_a_subgraph_for_a_group_of_groups() -> None:
    assert draw_mermaid(drawing_of(STUDY)) == textwrap.dedent(
        """\
        ---
        title: "study"
        ---
        flowchart TB
          subgraph g1["round  3 times, until #34;a #92;#34;b#92;#34;#92;#92;#34;"]
            g2["search<br/>master<br/>trainer: as many copies as fit x 1 GPU"]
            g3["node  until #91;#34;c#34;, 1#93;<br/>solver: 4 copies x 2 ranks x 3 threads"]
          end
          g4["beside  5 times<br/>solver: 4 copies x 2 ranks x 3 threads<br/>plot: 2 GPUs"]
          g5["end<br/>plot: 2 GPUs<br/>view: 1/4 GPU"]
          g2 --> g3
          g1 --> g5
          g4 --> g5"""
    )


@given(st.text(min_size=1, max_size=20))
def test_no_tag_ends_a_label(tag: str) -> None:
    group = Group(name="g", modules=["master"], until=tag)
    work = STUDY.model_copy(update={"groups": (group,)})
    labels = re.findall(r'\[("[^\n]*)\]$', draw_mermaid(drawing_of(work)), re.MULTILINE)
    assert len(labels) == 1
    assert re.fullmatch(r'"[^"\n]*"', labels[0])
    (node,) = [line for line in draw_dot(drawing_of(work)).split("\n") if " [label=" in line]
    assert re.fullmatch(r'  g1 \[label="(?:[^"\\]|\\.)*"\];', node)


# -- the command ----------------------------------------------------------------------------------


def graph(*arguments: object) -> object:
    return status_of("graph", *arguments)


@pytest.mark.sample(12)
@pytest.mark.parametrize("form", ["text", "dot", "mermaid", "svg"])
@pytest.mark.parametrize("file", sorted((ROOT / "workflows").glob("*.toml")), ids=lambda f: f.stem)
def test_every_workflow_can_be_drawn(
    file: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert graph(file, "--format", form) == 0
    out = capsys.readouterr().out
    workflow = load_workflow(file)
    for group in workflow.groups:
        assert workflow.expansion.templates.get(("group", group.name), group.name) in out
    if form == "dot":
        graphviz(out)


def test_a_bad_file_is_said_to_be_bad(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text("[[modul]]\n")
    assert graph(tmp_path / "w.toml") == 2
    assert "w.toml: " in capsys.readouterr().err


def test_a_terminal_without_unicode(tmp_path: Path) -> None:
    import sys

    file = tmp_path / "w.toml"
    file.write_text(
        '[[module]]\nname = "m"\nexecutable = ["true"]\n'
        '[[group]]\nname = "g"\nmodules = ["m"]\nuntil = "fertig ü"\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "diel", "graph", file],
        env={"PYTHONIOENCODING": "ascii", "PATH": "/bin:/usr/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode("ascii").splitlines()[2:] == [
        '  g  @ until "fertig \\xfc"',
        "  `- m",
    ]
