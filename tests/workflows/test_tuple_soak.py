"""All operations and sizes at once for a while, after which every tuple is accounted for."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import THOROUGH, diel, journal

SECONDS = 6 if THOROUGH else 2
MODULE = Path(__file__).parent / "tuple_soak.py"

WORKFLOW = """
[workflow]
name = "soak"
[tuple_space]
servers = {servers}
memory = "48 MiB"
[[module]]
name = "soak"
function = "{module}:run"
copies = 2
options = {{ seconds = {seconds}, seed = {seed} }}
[[group]]
name = "soak"
modules = ["soak"]
"""


@pytest.mark.sample
@pytest.mark.slow
@pytest.mark.parametrize("servers", [1, 3])
def test_every_tuple_is_accounted_for(servers: int, tmp_path: Path) -> None:
    file = tmp_path / "soak.toml"
    file.write_text(WORKFLOW.format(servers=servers, module=MODULE, seconds=SECONDS, seed=servers))
    finished = diel("run", file, cwd=tmp_path, timeout_s=SECONDS + 120)
    assert finished.status == 0, finished.output
    records = journal(tmp_path)
    (account,) = (
        record["returned"]
        for record in records
        if record["event"] == "CopyFinished" and "put" in record["returned"]  # type: ignore[operator]
    )
    assert isinstance(account, dict)
    print(f"{servers} servers: {account}")
    assert account["put"] == account["taken"] + account["left"] > 10 * SECONDS
    for what in ("lost", "made up", "doubled", "clicks missing", "updates missing"):
        assert account[what] == 0, account
    for operation in ("do_claim", "do_collect", "do_hear", "do_dist", "misfits", "do_take"):
        assert account[operation] > 0, account
    assert records[-1]["tuples_left"] == 0
