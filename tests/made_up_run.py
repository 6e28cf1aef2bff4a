"""A run directory of any size that no run has made, and what a browser does while it is watched."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diel.run.directory import RunDirectory
from diel.run.journal import JournalWriter
from diel.run.records import (
    CopyFinished,
    GroupStarted,
    Node,
    ResultsDeclared,
    ResultsShown,
    RunEnded,
    RunStarted,
)
from diel.run.status import write_status

_PER_NODE = 64
_SPANS = 40
_FILE = """\
[workflow]
name = "large"

[[module]]
name = "master"
function = "modules.master:run"

[[module]]
name = "trainer"
function = "modules.trainer:run"
copies = "fill"

[[group]]
name = "search"
modules = ["master", "trainer"]

[[group]]
name = "report"
modules = ["master"]
depends = ["search"]
"""


class MadeUpRun:
    """A sweep that seems to go on: rank 0, a tuple server, a master, and a trainer on each other.

    Its journal is locked, as that of a run is, until `end`.
    """

    def __init__(self, folder: Path, ranks: int = 1000, trials: int = 10_000) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / "large.toml"
        file.write_text(_FILE)
        self.directory = RunDirectory.create(folder, "large", file)
        self.ranks, self.trials, self.done = ranks, trials, 0
        self.has_ended = False
        self._began_s = time.time()
        self._write_results()
        self._write_logs_and_traces()
        self.journal = JournalWriter(self.directory.journal)
        with self.journal.batch():
            self._write_start()
        self.step(trials // 2)

    def _write_start(self) -> None:
        pool = range(2, self.ranks)
        nodes = [
            Node(f"node{number}", list(pool[first : first + _PER_NODE]))
            for number, first in enumerate(range(0, len(pool), _PER_NODE))
        ]
        placement = {"master.0": [2]}
        placement |= {f"trainer.{index}": [rank] for index, rank in enumerate(pool[1:])}
        self.journal.write(
            RunStarted(
                workflow="large",
                ranks=self.ranks,
                groups=["search", "report"],
                copies={"search": {"master": 1, "trainer": len(pool) - 1}, "report": {"master": 1}},
                servers=[1],
                nodes=nodes,
            )
        )
        self.journal.write(
            GroupStarted(
                group="search",
                copies={"master": 1, "trainer": len(pool) - 1},
                placement=placement,
            )
        )
        self.journal.write(
            ResultsDeclared(
                module="master",
                columns=["trial", "learning_rate", "accuracy"],
                objective="accuracy",
                maximise=True,
                expected=self.trials,
                file="results.csv",
            )
        )

    def _write_results(self) -> None:
        lines = [f"{n},{0.001 * (n % 97)},{0.5 + (n % 1009) / 2100}" for n in range(self.trials)]
        table = "\n".join(["trial,learning_rate,accuracy", *lines])
        self.directory.results_table(1).write_text(table + "\n")

    def _write_logs_and_traces(self) -> None:
        self.directory.trace_parts.mkdir()
        for rank in range(2, self.ranks):
            name = f"trainer.{rank - 3}" if rank > 2 else "master.0"
            module, _, copy = name.partition(".")
            self.directory.module_log(module, int(copy), 0).write_text(f"{name} began\n" * 20)
            begin_ns = round(self._began_s * 1e9)
            events = [
                {
                    "ph": "X",
                    "name": "wait: tget(('search', 'lease'))",
                    "cat": "wait",
                    "ts": begin_ns + number * 100_000_000 + rank * 1_000_000,
                    "dur": 30_000_000,
                    "tid": rank,
                    "args": {},
                }
                for number in range(_SPANS)
            ]
            text = "".join(json.dumps(event) + "\n" for event in events)
            self.directory.trace_part(rank).write_text(text)

    def write_ledger(self) -> Path:
        """Write the ledger of the sweep, all of its trials; return the file."""
        ledger = self.directory.path / "sweeps" / "search.master" / "trials.jsonl"
        ledger.parent.mkdir(parents=True)
        about = {
            "space": {
                "learning_rate": {"from": 0.001, "to": 1.0},
                "width": [32, 64, 128, 256],
                "depth": [1, 2, 3],
                "dropout": {"from": 0.0, "to": 0.5},
            },
            "objective": ["accuracy"],
            "maximise": [True],
            "trials": self.trials,
            "trainer": "trainer",
            "table": "results.csv",
            "seed": 1,
        }
        head = json.dumps({"format": 1, "sweep": about}) + "\n"
        ledger.write_text(head + "".join(map(self.record, range(self.trials))))
        return ledger

    def record(self, trial: int) -> str:
        """Return the line of a trial in the ledger."""
        place = trial * 7919 % 10_007 / 10_007  # spread over the space, the same each time
        accuracy = 0.95 - 0.3 * (place - 0.6) ** 2 - 0.02 * (trial * 31 % 17) / 17
        record = {
            "trial": trial,
            "state": "finished",
            "parameters": {
                "learning_rate": 10 ** (3 * place - 3),
                "width": 32 * 2 ** (trial % 4),
                "depth": 1 + trial % 3,
                "dropout": trial * 13 % 101 / 202,
            },
            "metrics": {"accuracy": accuracy, "training_time_s": 1.0 + trial * 3 % 11},
            "seed": trial,
            "trainer": trial % (self.ranks - 3),
            "started_s": self._began_s + trial // self.ranks,
            "seconds": 0.9,
            "reports": [[step, {"accuracy": accuracy - 1 / step}] for step in (1, 2, 4, 8)],
        }
        return json.dumps(record) + "\n"

    def step(self, trials: int = 10) -> None:
        """Finish some trials: the journal and the status say so, and other ranks wait."""
        self.done += trials
        best = [{"trial": self.done, "learning_rate": 0.1, "accuracy": 0.9 + self.done * 1e-7}]
        table = {"module": "master", "file": "results.csv"}
        self.journal.write(ResultsShown(**table, count=self.done, best=best, constants={}))
        now_s = time.time()
        waiting = [
            {
                "rank": rank,
                "copy": f"trainer.{rank - 3}",
                "what": "tget(('search', 'lease'))",
                "since_s": now_s - rank % 7,
            }
            for rank in range(3 + self.done % 10, self.ranks, 10)
        ]
        progress = [
            {"copy": f"trainer.{n}", "done": self.done % 20, "total": 20, "text": f"epoch {n}"}
            for n in range(self.ranks - 3)
        ]
        server = {
            "rank": 1,
            "tuples": self.done,
            "size_bytes": self.done * 1000,
            "capacity_bytes": 2**31,
        }
        write_status(
            self.directory, {"waiting": waiting, "servers": [server], "progress": progress}
        )

    def finish_copy(self, index: int) -> None:
        """Have a trainer come to its end."""
        self.journal.write(CopyFinished(group="search", module="trainer", copy=index))

    def end(self) -> None:
        """End the run, if it has not ended."""
        if self.has_ended:
            return
        self.has_ended = True
        self.journal.write(RunEnded(exit_code=0))
        self.journal.close()


def longest_task_ms(browser: Any, page: Any, watch: Callable[[], None]) -> float:
    """Return the longest that a page's main thread computed at a stretch during a call.

    In CPU time: other processes of the machine do not count. No picture is drawn meanwhile, so it
    is the longest frame of a browser that has a core for itself.
    """
    browser.start_tracing(
        page=page, categories=["toplevel", "disabled-by-default-devtools.timeline"]
    )
    watch()
    events = json.loads(browser.stop_tracing())["traceEvents"]
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    tasks = [
        event["tdur"] / 1000
        for event in events
        if event["ph"] == "X" and "tdur" in event and (event["pid"], event["tid"]) in threads
    ]
    assert tasks, "the browser has traced nothing"
    return max(tasks)


def seconds_until_shown(page: Any, run: MadeUpRun) -> float:
    """Change a run; return how long it takes until the page shows that."""
    words = f"{run.done + 10:,} of {run.trials:,}"
    begin_s = time.perf_counter()
    run.step(10)
    page.wait_for_function(
        "words => document.querySelector('[data-part=bars]').textContent.includes(words)",
        arg=words,
        polling="raf",
        timeout=120_000,
    )
    return time.perf_counter() - begin_s
