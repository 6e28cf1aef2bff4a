"""Our side of `sweep.py`: a grid of trials that take no time, or a second each."""

from __future__ import annotations

import json
from pathlib import Path

from launching import diel_run
from sweep_objective import TRAINERS, shape_of, sum_of

WORKFLOW = """\
[[module]]
name = "master"
function = "{script}:weighed_master"
[module.options]
objective = "score"
maximise = true

[module.options.space]
{space}
[[module]]
name = "trainer"
function = "modules.trainer:run"
copies = {trainers}
[module.options]
train = "{script}:{train}"
options = {{ seconds = 1.0 }}
[[group]]
name = "search"
modules = ["master", "trainer"]
"""


def sweep(folder: Path, points: int, train: str = "train") -> dict[str, float]:
    """Run a sweep; return its times, and by how much its master grew."""
    shape = shape_of(points)
    space = "\n".join(
        f"{name} = {{ from = 0, to = {count - 1}, step = 1 }}" if count > 1 else f"{name} = 0"
        for name, count in shape.items()
    )
    script = Path(__file__).with_name("sweep_modules.py")
    file = folder / "sweep.toml"
    file.write_text(WORKFLOW.format(script=script, space=space, train=train, trainers=TRAINERS))
    ran = diel_run(file, folder)
    (ended_s,) = (one["time_s"] for one in ran.of("GroupFinished"))
    (returned,) = (one["returned"] for one in ran.of("CopyFinished") if one["module"] == "master")
    (ledger,) = ran.directory.glob("sweeps/*/trials.jsonl")
    first_s, total, seen = ended_s, 0.0, set()
    with ledger.open("rb") as file_:
        file_.readline()
        for line in file_:
            record = json.loads(line)
            first_s = min(first_s, record["started_s"])
            total += record["metrics"]["score"]
            seen.add(record["trial"])
    if seen != set(range(points)) or total != sum_of(shape):
        raise RuntimeError(f"{len(seen)} of {points} trials, and a sum of {total}")
    return {
        "wall_s": ran.wall_s,
        "per_s": points / (ended_s - first_s),
        "growth_MiB": returned["growth_MiB"],
    }
