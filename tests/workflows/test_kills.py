"""Whatever of a run is killed, it ends as if nothing had been: a schedule of kills by a seed.

``DIEL_KILLS_SEED`` says which; `kills.py` does the same by hand, as often as one likes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support import THOROUGH

KILLS = 17 if THOROUGH else 8  # of each kind one at least
SEED = int(os.environ.get("DIEL_KILLS_SEED", "1"))


@pytest.mark.thorough
@pytest.mark.slow
def test_a_run_that_is_killed_in_every_way_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    import sys

    sys.path.insert(0, str(Path(__file__).parent))
    try:
        from kills import kill_again_and_again
    finally:
        sys.path.pop(0)
    tally = kill_again_and_again(tmp_path, KILLS, SEED)
    print(f"seed {SEED}: {dict(tally)}")
    assert sum(tally.values()) == KILLS, tally
    assert tally["nobody there"] <= 2, tally
