"""Every kind of failure of a copy, in one run: each is tried again, given up, and told."""

from __future__ import annotations

from pathlib import Path

from support import diel, journal, workflow

MODULES = """
def raises(ctx):
    raise ValueError("no convergence")

def waits(ctx):
    ctx.recv("raises", tag="which nobody sends")
"""
POLICY = 'on_failure = "continue"\nretries = 1\n'
# What runs, and the words with which it is given up.
KINDS = {
    "raises": ('function = "./m.py:raises"', "ValueError: no convergence"),
    "exits": ('executable = ["sh", "-c", "exit 7"]', "exited with status 7"),
    "killed": ('executable = ["sh", "-c", "kill -9 $$"]', "was killed by SIGKILL"),
    "missing": ('executable = ["{run_dir}/no-such-program"]', "no-such-program"),
    "no_folder": (
        'executable = ["true"]\ndirectory = "nowhere"',
        "nowhere does not exist",
    ),
    "no_input": (
        'executable = ["true"]\nstdin = "none.txt"',
        "none.txt does not exist",
    ),
    "no_path": (
        'executable = ["true"]\nenvironment = { PATH = "{run_dir}" }',
        "true cannot be started: No such file",
    ),
    "late": ('executable = ["sleep", "60"]\ntime_limit = "500 ms"', "time limit of 0.5 s"),
    "waits": ('function = "./m.py:waits"\ntime_limit = "500 ms"', "time limit of 0.5 s"),
}


def test_whatever_fails_is_tried_again_and_given_up(tmp_path: Path) -> None:
    """And the group that depends on all of them runs."""
    toml = "".join(
        f'[[module]]\nname = "{name}"\n{what}\n{POLICY}' for name, (what, _) in KINDS.items()
    )
    toml += '[[module]]\nname = "after"\nexecutable = ["touch", "it-went-on"]\n'
    toml += f'[[group]]\nname = "g"\nmodules = {list(KINDS)}\n'
    toml += '[[group]]\nname = "h"\nmodules = ["after"]\ndepends = ["g"]\n'
    finished = diel("run", workflow(tmp_path, toml, m=MODULES), cwd=tmp_path)
    assert finished.status == 0, finished.output
    assert (tmp_path / "it-went-on").exists()
    assert "Traceback" not in finished.output
    records = journal(tmp_path)
    given_up = {record["module"]: record for record in records if record["event"] == "CopyGivenUp"}
    assert set(given_up) == set(KINDS)
    for name, (_, words) in KINDS.items():
        assert given_up[name]["attempt"] == 2
        assert words in given_up[name]["error"], given_up[name]
        assert f"  {name}.0 (group g, 2 attempts): " in finished.stdout
    assert records[-1]["exit_code"] == 0
