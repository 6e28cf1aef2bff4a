"""The cores of a host, as the kernel describes them, and threads that are bound to some."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from diel.comm.cores import Topology, bound_to, read_topology


def described(folder: Path, siblings: dict[int, str], nodes: dict[int, str], online: str) -> Path:
    for cpu, text in siblings.items():
        file = folder / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        file.parent.mkdir(parents=True)
        file.write_text(f"{text}\n")
    (folder / "cpu" / "online").write_text(f"{online}\n")
    for node, text in nodes.items():
        file = folder / "node" / f"node{node}" / "cpulist"
        file.parent.mkdir(parents=True)
        file.write_text(f"{text}\n")
    return folder


def test_cores_and_nodes_are_read(tmp_path: Path) -> None:
    siblings = {0: "0,4", 1: "1,5", 2: "2,6", 3: "3,7", 4: "0,4", 5: "1,5", 6: "2,6", 7: "3,7"}
    folder = described(tmp_path, siblings, {0: "0-1,4-5", 1: "2-3,6-7"}, "0-7")
    found = read_topology(folder)
    assert found == Topology(((0, 4), (1, 5), (2, 6), (3, 7)), ((0, 1, 4, 5), (2, 3, 6, 7)))
    assert found.cpus == tuple(range(8))
    assert str(found) == "4 cores of 2 hardware threads on 2 NUMA nodes"


def test_cpus_that_are_off_and_nodes_without_any_are_left_out(tmp_path: Path) -> None:
    folder = described(tmp_path, {0: "0,2", 1: "1,3"}, {0: "0-3", 1: ""}, "0-1")
    assert read_topology(folder) == Topology(((0,), (1,)), ((0, 1),))


def test_a_kernel_that_says_nothing(tmp_path: Path) -> None:
    found = read_topology(tmp_path)
    assert found.cpus == tuple(range(os.cpu_count() or 1))
    assert found.nodes == (found.cpus,)


def test_this_host_has_what_this_process_may_use() -> None:
    assert os.sched_getaffinity(0) <= set(read_topology().cpus)


def test_all_threads_are_bound_for_a_while() -> None:
    before = os.sched_getaffinity(0)
    cpu = max(before)
    looked: dict[str, set[int]] = {}
    is_bound, is_over, has_looked = threading.Event(), threading.Event(), threading.Event()

    def look() -> None:
        is_bound.wait()
        looked["within"] = os.sched_getaffinity(0)
        has_looked.set()
        is_over.wait()
        looked["after"] = os.sched_getaffinity(0)

    older = threading.Thread(target=look)
    older.start()
    with bound_to([cpu]):
        assert os.sched_getaffinity(0) == {cpu}
        is_bound.set()
        has_looked.wait()
    assert os.sched_getaffinity(0) == before
    is_over.set()
    older.join()
    assert looked == {"within": {cpu}, "after": before}


def test_binding_ends_with_an_error_too() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(KeyError), bound_to([min(before)]):
        raise KeyError
    assert os.sched_getaffinity(0) == before
    with bound_to(None):
        assert os.sched_getaffinity(0) == before
