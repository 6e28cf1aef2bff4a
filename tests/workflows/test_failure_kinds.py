"""Every kind of failure of a copy, in one run: each is tried again, given up, and told."""

from __future__ import annotations

from pathlib import Path

from support import diel, journal, run_dir, workflow

MODULES = """
import sys

def raises(ctx):
    raise ValueError("no convergence")

class Mute(Exception):
    def __str__(self):
        raise RuntimeError("I cannot say")

def raises_what_cannot_be_said(ctx):
    raise Mute()

def ends_python(ctx):
    sys.exit(5)

def ends_mpi(ctx):
    from mpi4py import MPI
    MPI.Finalize()

def waits(ctx):
    ctx.recv("raises", tag="which nobody sends")
"""
POLICY = 'on_failure = "continue"\nretries = 1\n'
# What runs, and the words with which it is given up.
KINDS = {
    "raises": ('function = "./m.py:raises"', "ValueError: no convergence"),
    "mute": ('function = "./m.py:raises_what_cannot_be_said"', "Mute"),
    "ends_python": ('function = "./m.py:ends_python"', "SystemExit: 5"),
    "ends_mpi": (
        'function = "./m.py:ends_mpi"',
        "MPI.Finalize() would end MPI for the whole run: leave it to diel",
    ),
    "exits": (
        'executable = ["sh", "-c", "echo to stdout; seq -f \'line %g\' 3 >&2; exit 7"]',
        "exited with status 7",
    ),
    "crashes": ('executable = ["sh", "-c", "kill -SEGV $$"]', "was killed by SIGSEGV"),
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
    assert (run_dir(tmp_path) / "logs" / "exits.0.0.log").read_text() == "to stdout\n" * 2
    records = journal(tmp_path)
    details = {
        record["module"]: str(record["detail"])
        for record in records
        if record["event"] == "ModuleFailed"
    }
    assert "MPI.Finalize()\n" in details["ends_mpi"]  # the module's own line
    assert "line 3" in details["exits"]
    given_up = {record["module"]: record for record in records if record["event"] == "CopyGivenUp"}
    assert set(given_up) == set(KINDS)
    for name, (_, words) in KINDS.items():
        assert given_up[name]["attempt"] == 2
        assert words in given_up[name]["error"], given_up[name]
    for name in list(given_up)[:10]:
        assert f"  {name}.0 (group g, 2 attempts): " in finished.stdout
    assert f"  ... and {len(KINDS) - 10} more, in the journal\n" in finished.stdout
    assert records[-1]["exit_code"] == 0
