"""Journals of runs, written by hand."""

from __future__ import annotations

import json
import time
from typing import Any

from support import record

from diel.run.directory import RunDirectory

RUDE = "[red]x[/] [/nothing] :smile: [link=a]"  # Rich would take it as markup


class Journal:
    """Writes records as rank 0 does, at times of its own choice."""

    def __init__(self, directory: RunDirectory) -> None:
        self.file = directory.journal

    def add(self, event: str, **fields: Any) -> dict[str, Any]:
        record = {"time_s": time.time(), "event": event, **fields}
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        return record

    def start(self) -> None:
        self.add("RunStarted", workflow="study", ranks=4, groups=["g", "h"], mpi="Open MPI v5")
        self.add("GroupStarted", group="g", copies={"master": 1, "trainer": 2})

    def declare(self, expected: int | None = 2, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "module": "master",
            "copy": 0,
            "columns": ["trial", "note", "accuracy"],
            "objective": "accuracy",
            "maximise": True,
            "expected": expected,
        }
        self.add("ResultsDeclared", **{**fields, **changes})

    def row(self, trial: int, note: Any, accuracy: Any) -> None:
        row = {"trial": trial, "note": note, "accuracy": accuracy}
        self.add("ResultAdded", module="master", copy=0, row=row)

    def message(self, text: str) -> None:
        self.add("MessageLogged", module="trainer", copy=1, level="WARNING", text=text)

    def progress(self, **fields: Any) -> None:
        self.add(
            "ProgressMade", **{"module": "trainer", "copy": 0, "total": 10, "text": "", **fields}
        )

    def failure(self) -> Any:
        fields = self.add(
            "ModuleFailed",
            group="g",
            module="trainer",
            copy=1,
            rank=3,
            copy_rank=0,
            host="node17",
            error=f"ValueError: {RUDE}",
            detail=f"Traceback\n{RUDE}",
        )
        return record(**fields)

    def end(self, exit_code: int) -> None:
        self.add("RunEnded", exit_code=exit_code)
