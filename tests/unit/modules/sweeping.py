"""A folder with a trainer's file, and a master and trainers that meet in one process."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

from diel.testing import Module, ModuleRun, run_modules
from modules import master, trainer
from modules.sweep.ledger import ledger_path, records_of

MINE = """
import os, time
def train(parameters, report):
    with open(report.folder / "tried.txt", "a") as file:
        file.write(f"{report.trial} {report.seed} {report.attempt}\\n")
    x = parameters["x"]
    if report.options.get("fails") == x and report.attempt <= report.options.get("times", 99):
        raise ValueError(f"x is {x}")
    time.sleep(report.options.get("seconds", 0))
    return {"score": -abs(x - 7), "square": x * x}

def leaves(parameters, report):
    if parameters["x"] == 3:
        raise SystemExit(0)
    return {"score": parameters["x"]}

def stops(parameters, report):
    from diel.errors import RunStopped
    if os.path.exists(report.options["stops"]):
        raise RunStopped("as it was asked to")
    return train(parameters, report)

def broken(parameters, report):
    raise RuntimeError("always")

def steps(parameters, report):
    for step in range(1, 10):
        time.sleep(report.options.get("seconds", 0))
        if not report(step, score=parameters["x"] * step):
            return {"score": parameters["x"] * step, "steps": step}
    return {"score": parameters["x"] * 9, "steps": 9}

def loses_numbers(parameters, report):
    return [
        {"score": 0.0}, {"score": float("nan")}, {"score": float("inf")}, {"other": 1.0},
        {"score": 9.0, "diverged": True}, {"diverged": True}, {"score": 6.0, "diverged": False},
        {"score": 7.0},
    ][parameters["x"]]

def clashes(parameters, report):
    return {"score": parameters["x"], "x": -1, "trial": -1, "splits": 5, "state": "odd"}

ODD = [
    {"score": 10**400}, {"score": 1.0, "other": 10**5000}, {"score": 1j}, {"score": None}, None,
    {"score": "many"}, {"score": 1.0, 7: 1.0}, {"score": 1.0, "splits": {"a": 1}},
]

def strange(parameters, report):
    return ODD[parameters["x"]] if parameters["x"] < len(ODD) else {"score": parameters["x"]}

def texts(parameters, report):
    x = parameters["x"]
    given = {1: "0.9", 2: "nan", 3: None, 4: [0.5], 5: "0.9"}.get(x, x / 10)
    if x == 5:
        report(1, score=given, note="text that is no objective")
        given = 0.5
    return {"score": given, "note": "three" if x == 3 else x, "learning curve": 1.0}

def odd_report(parameters, report):
    if parameters["x"] == 0:
        report(1.5, score=1.0)
    report(1, score=0.25, odd=1j)
    raise ValueError("as it does")

def takes_apart(parameters, report):
    x = parameters.pop("x")
    parameters["kind"].append(x)
    parameters["more"] = 1
    return {"score": x, "kinds": len(parameters["kind"])}

def endless(parameters, report):
    assert isinstance(parameters["x"], (int, float)), parameters
    return {"score": float(parameters["x"] == float("inf"))}

def dated(parameters, report):
    return {"score": parameters["day"].toordinal()}

def many_steps(parameters, report):
    for step in range(1, report.options["steps"] + 1):
        report(step, score=parameters["x"] * step)
    return {"score": parameters["x"]}

def dies(parameters, report):
    report(1, score=0.5)
    if parameters["x"] == 2:
        report(2, score=0.75)
        os._exit(1)
    return {"score": 1.0}

def misspelt(parameters, report):
    if parameters["learning_rate"] == 1:
        return {"score": parameters["lr"]}
    if parameters["learning_rate"] == 2:
        return {"score": parameters.pop("beta")}
    return {"score": parameters.pop("beta", 3) + parameters.get("lr", 4) + parameters.pop("kind")}
"""


class Sweep:
    """A folder with a trainer's file and a run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "mine.py").write_text(MINE)
        self.run_dir = folder / "run"
        self.run_dir.mkdir()

    def run(
        self, wanted: dict[str, Any], *, trainers: int = 2, train: str = "train", **trained: Any
    ) -> ModuleRun:
        """Run it; return what the master did."""
        mine = trainer.Options.model_validate(
            {"train": f"./mine.py:{train}", **trained}, context={"folder": self.folder}
        )
        given = {"objective": "score", "maximise": True, **wanted}
        runs = run_modules(
            {
                "master": Module(
                    master.run,
                    master.Options.model_validate(
                        given, context={"folder": self.folder, "run_dir": self.run_dir}
                    ),
                ),
                "trainer": Module(trainer.run, mine, copies=trainers),
            },
            folder=self.folder,
            run_dir=self.run_dir,
            timeout=30,
        )
        (done,) = runs["master"]
        assert done.tuples == []  # nothing is left over
        return done

    @property
    def ledger(self) -> Path:
        return ledger_path(self.run_dir, "group", "master", (0,))

    def cut_ledger(self, lines: int) -> None:
        """Leave the first lines of the ledger: the heading, and the trials that ended first."""
        text = self.ledger.read_bytes().splitlines(keepends=True)
        self.ledger.write_bytes(b"".join(text[:lines]))

    @property
    def records(self) -> list[dict[str, Any]]:
        return list(records_of(self.ledger))

    @property
    def rows(self) -> list[dict[str, str]]:
        with (self.run_dir / "results.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    @property
    def tried(self) -> Counter[int]:
        text = (self.folder / "tried.txt").read_text()
        return Counter(int(line.split()[0]) for line in text.splitlines())


GRID = {"space": {"x": {"from": 0, "to": 29, "step": 1}, "kind": "k"}, "seed": 5}
