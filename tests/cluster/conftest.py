"""Clusters on this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import DAEMONS, Slurm


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    missing = [name for name in DAEMONS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"there is no Slurm here: {', '.join(missing)} (slurm-wlm and munge of Debian)")
    if os.geteuid() != 0:
        pytest.skip("this Slurm is started by root alone")
    folder = Path(tempfile.mkdtemp(prefix="diel-slurm-"))
    cluster = Slurm(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
