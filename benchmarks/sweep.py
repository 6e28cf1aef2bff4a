"""What a sweep costs beside its trials.

trials_vs_futures, trials_vs_futures_chunked (trials a second)
    A grid of points that take no time, two trainers, every trial in the ledger and in results.csv:
    from the first trial's start to the end of the group. The peer is mpi4py.futures with two
    workers, one task at a time, or in chunks of 32; it writes nothing down.
trials_vs_dask, trials_vs_ray_tune, trials_vs_optuna (trials a second)
    Likewise: Dask's local cluster with two processes; Ray Tune with two actors that are used again,
    without loggers; Optuna's random sampler, two processes and a journal storage in a file. Ready
    before the clock starts.
million_point_grid_s, grid_100k_s (s), master_growth_MiB
    ``diel run`` from the command to its end for a grid of a million points, or of 100,000; and by
    how much the memory of the master grew meanwhile, at its peak.
sweep_efficiency
    Trials of a second each, two trainers: the ideal time over that from the first trial's start to
    the end of the group.
heart_sweep_vs_pytorch, heart_sweep_vs_pytorch_bmm (trials a second)
    See `sweep_heart.py`.
ask_us (us)
    One ask of a strategy that was told 100, 10,000 and 1,000,000 trials.

Every sum of scores is checked against that of the grid.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import sweep_heart
from harness import Result, compare, parser, report
from sweep_asking import ask_rows
from sweep_objective import TRAINERS
from sweep_ours import sweep
from sweep_peers import futures, peer_rows

CHUNK = 32


def main() -> None:
    options = parser(__doc__).parse_args()
    rounds = 1 if options.quick else 3
    rows: list[Result] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs, single, chunked = [], [], []
        for _ in range(rounds):
            runs.append(sweep(folder, 100_000))
            single.append(futures(10_000, 1))
            chunked.append(futures(100_000, CHUNK))
        ours = [run["per_s"] for run in runs]
        for title, peer, about in (
            ("trials_vs_futures", single, "mpi4py.futures, one by one"),
            ("trials_vs_futures_chunked", chunked, f"mpi4py.futures, chunks of {CHUNK}"),
        ):
            rows.append(compare(title, ours, peer, about, "1/s", more_is_better=True))
        rows += peer_rows(options.peer_python, ours=ours, quick=options.quick)
        if options.quick:
            big, title = runs[0], "grid_100k_s"
        else:
            big, title = sweep(folder, 1_000_000), "million_point_grid_s"
        rows.append(compare(title, [big["wall_s"]], None, "none", "s"))
        rows.append(compare("master_growth_MiB", [big["growth_MiB"]], None, "none", "MiB"))
        trials = 6 * TRAINERS if options.quick else 30 * TRAINERS
        efficiency = sweep(folder, trials, "sleep")["per_s"] / TRAINERS
        rows.append(compare("sweep_efficiency", [efficiency], None, "none", "of ideal"))
        rows += sweep_heart.rows(folder, options.peer_python, quick=options.quick)
    rows += ask_rows(quick=options.quick)
    report(rows, options.json)


if __name__ == "__main__":
    main()
