"""Settings for all tests: their order, and Hypothesis draws the same examples each time.

``HYPOTHESIS_PROFILE=default`` draws new ones.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import settings

# Open MPI asks for these as root, as in a container.
for _name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
    os.environ.setdefault(_name, "1")
    os.environ.setdefault(f"{_name}_CONFIRM", "1")

# Whoever starts the tests in the background of a script has SIGINT ignored, which every process
# inherits that they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Which routine of convolution is fastest takes a while to find out, with all of them compiled.
os.environ.setdefault("DNN_ROUTINES", "fixed")

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes long, then all whole runs: quick tests fill the time to the end."""

    def is_whole_run(item: pytest.Item) -> bool:
        return item.path.parent.name == "workflows"

    items.sort(key=lambda item: (not item.get_closest_marker("slow"), not is_whole_run(item)))
