"""How much memory a process may use."""

from __future__ import annotations

import os

import pytest

from diel import processes

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
UNDER_V1 = {
    "/proc/self/cgroup": ["9:cpu:/a", "3:cpuset,memory:/job/step"],
    "/sys/fs/cgroup/memory/job/memory.limit_in_bytes": ["4096"],
    "/sys/fs/cgroup/memory/job/step/memory.limit_in_bytes": ["9223372036854771712"],
}
UNDER_V2 = {
    "/proc/self/cgroup": ["0::/job/step"],
    "/sys/fs/cgroup/job/memory.max": ["8192"],
    "/sys/fs/cgroup/job/step/memory.max": ["max"],
}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, MACHINE),
        ({"/proc/self/cgroup": ["0::/"]}, MACHINE),
        ({"/proc/self/cgroup": ["0::/"], "/sys/fs/cgroup/memory.max": ["1024"]}, 1024),
        ({"/proc/self/cgroup": ["0::/../else"], "/sys/fs/cgroup/memory.max": ["1024"]}, 1024),
        (UNDER_V1, 4096),
        (UNDER_V2, 8192),
    ],
)
def test_the_memory_is_that_of_the_smallest_control_group(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, list[str]], expected: int
) -> None:
    monkeypatch.setattr(processes, "_lines_of", lambda file: files.get(file, []))
    assert processes.memory_bytes() == expected
