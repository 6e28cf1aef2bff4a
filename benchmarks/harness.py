"""What every benchmark shares: peers in processes of their own, blocks in turn, ratios of medians.

A benchmark is a script with two roles. Started by a person it is the referee: it starts one
worker process for each contender and lets them work block by block in turn (A B A B), so that
a neighbour's load meets both alike. Started with ``--worker NAME`` it is that contender: it gets
ready, and then answers each line of JSON on its standard input with one on its standard output.

    referee    {"task": "mlp_depth2", "steps": 50}  ->
    worker                                          <-  {"seconds": 0.1234}

Two contenders never share a process: two thread pools in one spoil both. And whoever does not
have its turn is stopped by a signal: idle threads of OpenBLAS spin for longer than a block takes,
which made PyTorch, next in turn, half as fast as it is.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

REPOSITORY = Path(__file__).resolve().parents[1]
PEER_PYTHON = "DIEL_BENCHMARK_PEER_PYTHON"
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)

Repeat = Callable[[int], Iterator[None]]
"""Repeats something a number of times: yields once when ready to begin, then after each time."""


@dataclass(frozen=True)
class Result:
    """One row. `ratio` is above 1 where ours is better; what is missing is None.

    `ours` and `peer` are medians, in `unit`.
    """

    name: str
    ours: float | None
    peer: float | None
    peer_name: str
    unit: str
    ratio: float | None


def compare(
    name: str,
    ours: Sequence[float],
    peer: Sequence[float] | None,
    peer_name: str,
    unit: str,
    *,
    more_is_better: bool = False,
) -> Result:
    """Make the row of two lists of measurements, in which less is better unless said otherwise."""
    mine = statistics.median(ours) if ours else None
    theirs = statistics.median(peer) if peer else None
    if mine is None or theirs is None:
        return Result(name, mine, theirs, peer_name, unit, None)
    ratio = mine / theirs if more_is_better else theirs / mine
    return Result(name, mine, theirs, peer_name, unit, ratio)


class Blocks:
    """Blocks of repetitions that take about the same time, whatever it is that is repeated."""

    PARTS = 20

    def __init__(self) -> None:
        self._repetitions: dict[object, int] = {}

    def seconds_each(self, name: object, repeat: Repeat, block_s: float) -> float:
        """Return the time of one repetition: the median over the parts of a block.

        The first block of a name comes after a warm-up, which finds out how many repetitions
        take `block_s`.
        """
        if name not in self._repetitions:
            count = 1
            while (passed_s := min(_time_parts(repeat, [count] * 2))) < block_s / 8:
                count *= 2
            self._repetitions[name] = max(1, round(count * block_s / passed_s))
        # In parts, since it takes a moment until the system has given each process a core.
        count = self._repetitions[name]
        parts = min(self.PARTS, count)
        return statistics.median(_time_parts(repeat, [count // parts] * parts)) / (count // parts)


def _time_parts(repeat: Repeat, parts: Sequence[int]) -> list[float]:
    """Return the seconds that each part of some repetitions took."""
    repetitions = repeat(sum(parts))
    next(repetitions)
    times = []
    for count in parts:
        started_s = time.perf_counter()
        for _ in itertools.islice(repetitions, count):
            pass
        times.append(time.perf_counter() - started_s)
    for _ in repetitions:
        raise RuntimeError("more repetitions than were asked for")
    return times


@functools.lru_cache(maxsize=1)
def _buffers(size: int) -> tuple[Any, Any]:
    import numpy as np

    value = np.arange(size, dtype=np.uint8)  # wraps around
    return value, np.empty_like(value)


def arrays(size: int) -> tuple[Any, Any]:
    """Return an array of bytes to send and another one to receive it in, both warm.

    They are the same ones each time, with other contents: what has arrived in an earlier block
    cannot pass for what arrives in this one.
    """
    value, out = _buffers(size)
    value += 1
    out.fill(0)
    return value, out


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark takes."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--quick", action="store_true", help="fewer repetitions, under 50 s")
    options.add_argument("--json", type=Path, metavar="PATH", help="write each row there at once")
    options.add_argument(
        "--peer-python",
        default=os.environ.get(PEER_PYTHON, sys.executable),
        metavar="PATH",
        help=f"the interpreter that has the peer installed (default: ${PEER_PYTHON}, else this)",
    )
    options.add_argument("--worker", help=argparse.SUPPRESS)
    options.add_argument("--setup", help=argparse.SUPPRESS)
    return options


def gpu_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a benchmark for GPUs."""
    options = parser(description)
    options.add_argument(
        "--tiny", action="store_true", help="sizes to try the script with; the numbers mean nothing"
    )
    return options


def machine() -> dict[str, Any]:
    """Describe the machine."""
    import numpy

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
    }


def require_gpu(benchmark: str) -> None:
    """End with the reason where no GPU can be used."""
    from dnn.backend.device import cuda_problem

    if problem := cuda_problem():
        sys.exit(f"{benchmark}: this benchmark needs a GPU: {problem}")


def gpu() -> dict[str, str]:
    """Describe the GPU and its libraries."""
    from dnn.backend import device_facts

    facts = device_facts("cuda")
    return {
        "gpu": facts["device_name"],
        **{key: facts[key] for key in ("cupy", "cublas", "driver")},
    }


def torch_finds_gpu(python: str) -> bool:
    """Say whether an interpreter has a PyTorch that finds a GPU."""
    code = "import torch; raise SystemExit(not torch.cuda.is_available())"
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def version_of(package: str, python: str) -> str | None:
    """Return the version of a package in an interpreter, None where it is not installed."""
    code = f"import importlib.metadata; print(importlib.metadata.version({package!r}))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


class Worker:
    """A contender in a process of its own.

    Parameters
    ----------
    script : path of the benchmark
    name : str
        What it gets as ``--worker``.
    python : str
        Its interpreter.
    threads : int
        For every thread pool that it may have.
    setup : str
        What it gets as ``--setup``.
    environment : mapping, optional
        Further variables.
    """

    def __init__(
        self,
        script: str,
        name: str,
        python: str,
        threads: int,
        setup: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        fixed = dict.fromkeys(THREAD_VARIABLES, str(threads))
        paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
        fixed["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        self.name = name
        self._process = subprocess.Popen(
            [python, script, "--worker", name, "--setup", setup],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **fixed, **(environment or {})},
        )

    def ask(self, **task: Any) -> dict[str, Any]:
        """Let it do one block, and wait for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker {self.name!r} ended: {self._process.wait()}")
        self._process.send_signal(signal.SIGSTOP)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """Let it end, as it does when there are no more tasks."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve(
    work: Callable[..., dict[str, Any]],
    tasks: Iterable[str] = sys.stdin,
    answers: TextIO = sys.stdout,
) -> None:
    """Be a contender: answer each task until there are no more."""
    for line in tasks:
        print(json.dumps(work(**json.loads(line))), file=answers, flush=True)


def report(results: Iterable[Result], path: Path | None, **further: str) -> None:
    """Print each row when it is there, and keep those so far as JSON where a path is given.

    Whoever ends the benchmark before its time finds the rows that were measured: the file is
    whole after each. A row with the name of an earlier one takes its place, as one that was
    measured again does. `further` is told of the machine besides.
    """
    about = {**machine(), **further}
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print(f"{'name':40s}{'ours':>10s}{'peer':>10s}  {'unit':14s}{'ratio':>7s}  peer", flush=True)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    rows: dict[str, dict[str, Any]] = {}
    for row in results:
        ours, peer = (
            "missing" if value is None else f"{value:.4g}" for value in (row.ours, row.peer)
        )
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        columns = f"{row.name:40s}{ours:>10s}{peer:>10s}  {row.unit:14s}{ratio:>7s}"
        print(f"{columns}  {row.peer_name}", flush=True)
        rows[row.name] = asdict(row)
        if path is not None:
            written = path.with_name(path.name + ".part")
            kept = {"machine": about, "results": list(rows.values())}
            written.write_text(json.dumps(kept, indent=1) + "\n")
            written.replace(path)
