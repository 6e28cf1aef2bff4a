"""What the pages may show and write: paths, links and names of any kind, without a browser."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from support import wait_until

pytest.importorskip("nicegui", reason="the extra gui is not installed")

from diel.errors import PageError
from diel.gui import home
from diel.gui.box import run_again
from diel.gui.home import file_rows, run_table
from diel.gui.processes import exit_code_of, start_command
from diel.gui.server import _folder_and_first_page
from diel.gui.site import Site
from diel.run.directory import RunDirectory
from diel.run.listing import listed
from diel.run.part import GroupLinks
from diel.run.scores import ScoreReader

STARTED = {"time_s": 1.0, "event": "RunStarted", "workflow": "w", "ranks": 2, "groups": ["g"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "w.toml").write_text("[workflow]\n")
    return folder


def make_run(parent: Path, name: str = "w", **fields: Any) -> RunDirectory:
    run = RunDirectory.create(parent, name, Path(__file__))
    with run.journal.open("a") as journal:
        journal.write(json.dumps({**STARTED, **fields}) + "\n")
    return run


def run_rows(site: Site) -> list[dict[str, Any]]:
    return run_table(site, listed(site.runs(), ScoreReader()))[1]


def test_the_own_link_to_a_folder_of_runs_is_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (folder / "runs").symlink_to(tmp_path / "scratch")
    site = Site(folder)
    run = make_run(folder / "runs")
    name = f"runs/{run.path.name}"
    assert site.resolve_run(name) == tmp_path / "scratch" / run.path.name
    assert site.name_of(site.resolve_run(name)) == name
    assert [row["folder"] for row in run_rows(site)] == [name]
    assert site.folder_of_runs() == folder / "runs"
    assert site.is_record(site.resolve(f"{name}/workflow.toml"))
    assert not site.is_record(folder / "w.toml")
    with pytest.raises(PageError, match="outside of the folder"):
        site.resolve("runs/../other")


def test_a_run_names_the_file_that_it_was_started_from(folder: Path, tmp_path: Path) -> None:
    run, site = make_run(folder / "runs"), Site(folder)
    assert site.workflow_of(str(folder / "w.toml")) == folder / "w.toml"
    for other in (run.workflow, tmp_path / "x.toml", folder / "gone.toml", "w.toml", "\0", ""):
        assert site.workflow_of(str(other)) is None


def test_browsers_share_a_listing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def in_thread(read: Any) -> Any:
        return await asyncio.to_thread(read)

    monkeypatch.setattr("nicegui.run.io_bound", in_thread)

    async def open_pages() -> list[Any]:
        listing = home._Listing(Site(folder))
        leaves = asyncio.ensure_future(listing.latest())
        others = [asyncio.ensure_future(listing.latest()) for _ in range(5)]
        await asyncio.sleep(0)
        leaves.cancel()
        return [*await asyncio.gather(*others), await listing.latest()]

    shown = asyncio.run(open_pages())
    assert shown[0] is not None
    assert all(one is shown[0] for one in shown)


def test_other_links_to_a_folder_of_runs_are_refused_before_anything_starts(
    folder: Path, tmp_path: Path
) -> None:
    site = Site(folder)
    (folder / "runs").symlink_to(tmp_path)  # made later
    with pytest.raises(PageError, match="make your own, and start diel gui again"):
        site.folder_of_runs()


@pytest.mark.parametrize(
    "place", ["logs", "trace", "sweeps", "journal.jsonl", "status.json", "sweeps/a/trials.jsonl"]
)
def test_links_within_a_run_that_lead_outside_are_refused(
    folder: Path, tmp_path: Path, place: str
) -> None:
    run, elsewhere = make_run(folder), make_run(tmp_path, "elsewhere")
    link = run.path / place
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_dir():
        link.rmdir()
    link.unlink(missing_ok=True)
    link.symlink_to(elsewhere.journal if link.suffix else elsewhere.logs)
    with pytest.raises(PageError, match="leads outside"):
        Site(folder).resolve_run(run.path.name)
    shown = [row["folder"] for row in run_rows(Site(folder))]
    assert shown == ([] if place in ("logs", "journal.jsonl") else [run.path.name])


def test_names_that_are_no_text_cost_no_other_row(folder: Path) -> None:
    make_run(folder, workflow="\ud800")
    make_run(folder, "fine")
    with open(os.fsencode(folder) + b"/\xff.toml", "w") as file:
        file.write("[workflow]\n")
    os.mkdir(os.fsencode(folder) + b"/\xfe")
    make_run(Path(os.fsdecode(os.fsencode(folder) + b"/\xfe")))
    site = Site(folder)
    runs, files = run_rows(site), file_rows(site)
    json.dumps([runs, files], ensure_ascii=False).encode()
    assert (len(runs), len({row["key"] for row in runs})) == (3, 3)
    assert sorted(bool(row["link"]) for row in files) == [False, True]
    with pytest.raises(PageError, match="rename it"):
        _folder_and_first_page(
            next(file for file in folder.glob("*.toml") if file.name != "w.toml")
        )


def test_output_goes_through_no_link_and_waits_for_no_pipe(tmp_path: Path) -> None:
    log = tmp_path / "resume.log"
    (tmp_path / "mine").write_text("mine")
    log.symlink_to(tmp_path / "mine")
    with pytest.raises(PageError, match="symbolic links"):
        start_command(["--version"], tmp_path, log)
    assert (tmp_path / "mine").read_text() == "mine"
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(PageError, match="cannot be started"):
        start_command(["--version"], tmp_path, log)
    log.unlink()
    process = start_command(["--version"], tmp_path, log)
    wait_until(lambda: exit_code_of(process) == 0)
    assert "diel" in log.read_text()


def test_parameters_that_differ_are_columns_that_sort_by_value(folder: Path) -> None:
    for name, parameters in (
        ("a", {"dt": 0.1, "method": "euler", "cells": 64}),
        ("b", {"dt": 0.05, "method": "midpoint", "cells": 64}),
        ("c", {}),
    ):
        make_run(folder, name, parameters=parameters)
    site = Site(folder)
    columns, rows = run_table(site, listed(site.runs(), ScoreReader()))
    names = [column["name"] for column in columns]
    assert names == [
        *("workflow", "state", "started", "duration", "ranks"),
        *("parameter dt", "parameter method", "parameters", "folder", "reason"),
    ]
    by_name = {row["folder"].partition("-")[0]: row for row in rows}
    assert by_name["a"]["parameter dt"] == "0.1"
    assert by_name["a"]["parameters"] == "cells=64"
    assert by_name["b"]["order"][2:] == [0.05, "midpoint"]
    assert by_name["c"]["order"][1:] == [None, None, None]
    (dt,) = (column for column in columns if column["name"] == "parameter dt")
    assert "order[2]" in dt[":sort"]


def test_the_command_that_runs_a_group_again() -> None:
    inside = {"step": "loop", "loop": "all"}
    links = GroupLinks(inside=inside, repeating=["loop", "step"])
    words = run_again(Path("a b.toml"), ["dt=1", "s=x y"], links, "all")
    assert words[:6] == ["run", "a b.toml", "--set", "dt=1", "--set", "s=x y"]
    assert words[6:] == ["--only", "all", "--force"]
    for group in ("loop", "step"):  # a pass of a group is no part of a run
        assert run_again(Path("w"), [], links, group) == ["run", "w", "--only", "loop", "--force"]
