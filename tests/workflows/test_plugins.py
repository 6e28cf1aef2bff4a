"""What an installed package declares as entry points is found, named in a file, and run."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import diel, results, run_dir, wait_until

from diel import plugins
from diel.errors import PluginError
from diel.loading.reporter import reporters
from diel.loading.trial_log import TrialLog
from diel.plugins import installed_plugins, load_installed
from diel.workflow.functions import FunctionNotFound, locate
from modules.sweep.ledger import Ledger, ledger_path

CODE = """
import json

from diel import Reporter

class Descending:
    def __init__(self, space, seed, start=3):
        self.start = start

    def ask(self, trial):
        return {"x": self.start - trial} if trial < self.start else None

    def tell(self, trial, parameters, score):
        pass

def train(parameters, report):
    return {"score": parameters["x"] + report.options["more"]}

def run(ctx):
    return ctx.options["word"] * 2

class Markdown(Reporter):
    def write_report(self, table):
        path = table.report.with_suffix(".md")
        best = max(float(row["score"]) for row in table.rows())
        path.write_text(f"{table.run}: {table.objective} {best}")
        return path

class Functions:
    def explain_lost_ranks(self, run_dir, copies):
        return [f"lost: {', '.join(copies)}"]

FUNCTIONS = Functions()

class Tracker(Reporter):
    def __init__(self):
        self.logged = 0

    def log_trial(self, run_dir, sweep, trial):
        with open(run_dir / "tracked.jsonl", "a") as file:
            print(json.dumps([sweep.name, sweep.summary()["objective"], trial]), file=file)
        self.logged += 1
        print(f"{self.logged} logged")

class Failing(Reporter):
    def log_trial(self, run_dir, sweep, trial):
        if trial["trial"] == 2:
            raise ConnectionError("no route to the tracker")

class Hanging(Reporter):
    def log_trial(self, run_dir, sweep, trial):
        (run_dir / "hangs").touch()
        import time
        time.sleep(600)
"""
ENTRY_POINTS = """
[console_scripts]
lattice = lattice:main

[diel.modules]
lattice = lattice:run
lattice_modules = lattice_modules

[diel.strategies]
descending = lattice:Descending
broken = lattice:Ascending

[diel.trainers]
adding = lattice:train

[diel.reporters]
markdown = lattice:Markdown
tracker = lattice:Tracker
failing = lattice:Failing
functions = lattice:FUNCTIONS

[diel.unknown]
other = lattice:run
"""
WORKFLOW = """
[workflow]
name = "study"

[[module]]
name = "doubler"
function = "lattice"
options = { word = "ab" }

[[module]]
name = "master"
function = "modules.master:run"
[module.options]
objective = "score"
maximise = true
strategy = { name = "descending", start = 5 }
space = { x = { from = 1, to = 9 } }

[[module]]
name = "trainer"
function = "modules.trainer:run"
options = { train = "adding", options = { more = 0.5 } }

[[group]]
name = "all"
modules = ["doubler", "master", "trainer"]
"""


def distribution(site: Path, name: str, entry_points: str) -> None:
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    site = tmp_path / "site"
    distribution(site, "lattice", ENTRY_POINTS)
    (site / "lattice.py").write_text(CODE)
    (site / "lattice_modules").mkdir()
    (site / "lattice_modules" / "__init__.py").touch()
    (site / "lattice_modules" / "twice.py").write_text("def run(ctx):\n    return 2\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    yield site
    for name in ("lattice", "lattice_modules"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("once")
def test_a_run_with_an_installed_module_strategy_trainer_and_reporter(
    site: Path, tmp_path: Path
) -> None:
    (tmp_path / "w.toml").write_text(WORKFLOW)
    ran = diel("run", "w.toml", cwd=tmp_path)
    assert ran.status == 0, ran.output
    assert "abab" in ran.output
    assert [(row["x"], row["score"]) for row in results(tmp_path)] == [
        (str(x), str(x + 0.5)) for x in (5, 4, 3, 2, 1)
    ]
    reported = diel("report", run_dir(tmp_path), cwd=tmp_path)
    assert reported.status == 0, reported.output
    written = run_dir(tmp_path) / "report.md"
    assert str(written) in reported.stdout.splitlines()
    assert written.read_text() == "study: score 5.5"
    assert (run_dir(tmp_path) / "report.html").is_file()
    # Each trial was logged, and a logger that failed has kept nothing from going on.
    tracked = (run_dir(tmp_path) / "tracked.jsonl").read_text()
    logged = [json.loads(line) for line in tracked.splitlines()]
    assert [name for name, *_ in logged] == ["all.master"] * 5
    assert {objective for _, objective, _ in logged} == {"score"}
    assert [trial["trial"] for *_, trial in logged] == [0, 1, 2, 3, 4]
    assert [trial["metrics"] for *_, trial in logged] == [
        {"score": x + 0.5} for x in (5, 4, 3, 2, 1)
    ]
    assert {"parameters", "state", "seed", "seconds", "reports"} <= logged[0][2].keys()
    why = "lattice: log_trial is not called again: ConnectionError: no route to the tracker"
    assert why in ran.output
    (log,) = (run_dir(tmp_path) / "logs").glob("master.*.log")
    assert "5 logged\n" in log.read_text()
    assert "Traceback" in log.read_text()


def test_what_is_installed_is_found_by_name(site: Path, tmp_path: Path) -> None:
    assert set(installed_plugins("modules")) == {"modules", "lattice", "lattice_modules"}
    names = {"sweep", "tensorboard", "markdown", "tracker", "failing", "functions"}
    assert set(installed_plugins("reporters")) == names
    told = [line for each in reporters() for line in each.explain_lost_ranks(tmp_path, ["a.0"])]
    assert told == ["lost: a.0"]
    assert locate("lattice", tmp_path).file == site / "lattice.py"
    found = locate("lattice_modules.twice:run", tmp_path)
    assert (found.file, found.is_installed) == (site / "lattice_modules" / "twice.py", True)
    with pytest.raises(FunctionNotFound, match='did you mean "lattice"'):
        locate("latice", tmp_path)


def test_a_folder_of_the_same_name_hides_what_it_has(site: Path, tmp_path: Path) -> None:
    own = tmp_path / "study" / "lattice_modules"
    own.mkdir(parents=True)
    (own / "mine.py").write_text("def run(ctx): ...\n")
    mine = locate("lattice_modules.mine:run", own.parent)
    assert (mine.file, mine.is_installed, mine.hidden) == (
        own / "mine.py",
        False,
        {"lattice_modules"},
    )
    theirs = locate("lattice_modules.twice:run", own.parent)
    assert (theirs.is_installed, theirs.hidden) == (True, {"lattice_modules"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "diel.strategies: 'broken' of lattice: AttributeError: .*Ascending"),
        ("gone", "no installed package declares 'gone' in diel.strategies"),
    ],
)
def test_a_plugin_that_cannot_be_used(site: Path, name: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        load_installed("strategies", name)


def test_a_package_of_modules_is_imported_once(tmp_path: Path) -> None:
    # In a process of its own: here an earlier test may have imported it under either name.
    code = (
        "import sys, modules.objective; from diel.plugins import import_installed as get; "
        "assert get('modules.objective') is modules.objective; "
        "del sys.modules['modules'], sys.modules['modules.objective']; "
        "assert get('modules.objective') is not modules.objective"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=60)


def test_two_packages_with_the_same_name(site: Path) -> None:
    distribution(site, "other", "[diel.strategies]\ndescending = other:Descending\n")
    plugins._installed.cache_clear()
    with pytest.raises(PluginError, match=r"diel\.strategies: .* both have a 'descending'"):
        installed_plugins("strategies")


def test_a_stale_installation_says_how_to_mend_it(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distribution(site, "diel", "[console_scripts]\ndiel = diel.__main__:main\n[diel.modules]\n")
    plugins._installed.cache_clear()
    with pytest.raises(PluginError, match=r"diel\.modules and diel\.reporters: reinstall it.*-e"):
        installed_plugins("modules")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("lattice", "lattice has no method of a reporter: name a class derived from diel.Reporter"),
        ("lattice:Functions", "class lattice:Functions is not derived from diel.Reporter"),
        ("lattice:Broken", "ValueError: no account"),
    ],
)
def test_what_is_no_reporter_is_refused(site: Path, value: str, words: str) -> None:
    broken = "\nclass Broken(Reporter):\n    def __init__(self):\n"
    (site / "lattice.py").write_text(f"{CODE}{broken}        raise ValueError('no account')\n")
    distribution(site, "other", f"[diel.reporters]\nodd = {value}\n")
    plugins._installed.cache_clear()
    with pytest.raises(PluginError, match=f"diel.reporters: 'odd' of other: {re.escape(words)}"):
        list(reporters())
    # A sweep goes on without its log.
    (problem,) = TrialLog(site, "all.master", 0).new_problems()
    assert words in problem


def test_a_logger_that_hangs_is_ended(site: Path, tmp_path: Path) -> None:
    (site / "lattice-1.0.dist-info" / "entry_points.txt").write_text(
        "[diel.reporters]\nhanging = lattice:Hanging\n"
    )
    plugins._installed.cache_clear()
    ledger = ledger_path(tmp_path, "all", "master", ())
    trial = {"trial": 0, "state": "finished", "parameters": {"x": 1}, "metrics": {"score": 1.0}}
    about = {"objective": ["score"], "maximise": [True], "space": {"x": [1]}, "trainer": "trainer"}
    with contextlib.closing(Ledger(ledger, about)) as lines:
        lines.write([{**trial, "trial": number} for number in range(3)])
    log = TrialLog(tmp_path, "all.master", 2)
    wait_until((tmp_path / "hangs").exists, 60)
    assert log.new_problems() == []
    (problem,) = log.close(0.1)
    assert problem.startswith("not all trials are logged")
    assert log.close(0.1) == []
