"""A Slurm script: what it asks for, that a shell can read it, and that a stop is passed on."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import status_of

from diel.errors import LaunchError, WorkflowError
from diel.executive.sbatch import Job, job_for, sbatch_script, time_limit_s
from diel.loading.environment import THREAD_VARIABLES
from diel.workflow.model import Group, Module, Workflow


def workflow(**modules: dict[str, Any]) -> Workflow:
    return Workflow(
        name="study",
        modules=tuple(Module(name=name, function="m:f", **one) for name, one in modules.items()),
        groups=(Group(name="g", modules=tuple(modules)),),
        file=Path("/study.toml"),
    )


PLAIN = workflow(a={"copies": 4, "threads": 2}, b={"processes": 2, "threads": 3})
WITH_GPUS = workflow(a={"copies": 4, "gpus": 2}, b={})
FILLS = workflow(a={"copies": "fill"})


@pytest.mark.parametrize(
    ("work", "given", "expected"),
    [
        (PLAIN, {}, (8, None, None, 3, 0)),
        (PLAIN, {"nodes": 3}, (8, 3, 3, 3, 0)),
        (PLAIN, {"per_node": 5}, (8, 2, 5, 3, 0)),
        (PLAIN, {"nodes": 2, "per_node": 8}, (16, 2, 8, 3, 0)),
        (PLAIN, {"ranks": 9}, (9, None, None, 3, 0)),
        (PLAIN, {"ranks": 9, "nodes": 2}, (9, 2, 5, 3, 0)),
        (PLAIN, {"ranks": 9, "nodes": 2, "per_node": 6}, (9, 2, 6, 3, 0)),
        (WITH_GPUS, {}, (7, 1, 7, 1, 8)),
        (WITH_GPUS, {"nodes": 2}, (7, 2, 4, 1, 4)),
        (WITH_GPUS, {"per_node": 3}, (7, 3, 3, 1, 4)),
        (FILLS, {"ranks": 5}, (5, None, None, 1, 0)),
        (FILLS, {"nodes": 2, "per_node": 4}, (8, 2, 4, 1, 0)),
    ],
)
def test_what_is_asked_for(
    work: Workflow, given: dict[str, int], expected: tuple[Any, ...]
) -> None:
    assert job_for(work, "study.toml", **given) == Job("study", *expected)


@pytest.mark.parametrize(
    ("work", "given", "words"),
    [
        (FILLS, {}, 'a of study.toml has copies = "fill"'),
        (FILLS, {"nodes": 2}, "--nodes N --per-node M"),
        (PLAIN, {"ranks": 9, "nodes": 2, "per_node": 4}, "hold 8 ranks, 9 are needed"),
        (PLAIN, {"ranks": 7}, "8 needed, 7 available"),
        (PLAIN, {"nodes": 1, "per_node": 2}, "8 needed, 2 available"),
    ],
)
def test_numbers_that_do_not_go_together(work: Workflow, given: dict[str, int], words: str) -> None:
    with pytest.raises((LaunchError, WorkflowError), match=words):
        job_for(work, "study.toml", **given)


JOB = Job("study", 8, 2, 4, 3, 2)


def test_the_script() -> None:
    script = sbatch_script(
        JOB, ["/venv/bin/diel", "run", "/w.toml"], time_limit="1-0", partition="gpu,big"
    )
    head, _, rest = script.partition("\n\n")
    assert head == textwrap.dedent(
        """\
        #!/bin/bash
        #SBATCH --job-name=study
        #SBATCH --nodes=2
        #SBATCH --ntasks=8
        #SBATCH --ntasks-per-node=4
        #SBATCH --cpus-per-task=3
        #SBATCH --gpus-per-node=2
        #SBATCH --time=1-0
        #SBATCH --partition=gpu,big
        #SBATCH --signal=B:TERM@60"""
    )
    assert rest.startswith("srun --ntasks=8 --cpus-per-task=3 /venv/bin/diel run /w.toml &\n")


def test_what_is_left_to_the_site_is_not_asked_for() -> None:
    script = sbatch_script(Job("w", 4, None, None, 1, 0), ["diel", "run", "w"], launcher="mpiexec")
    assert [line for line in script.splitlines() if line.startswith("#SBATCH")] == [
        "#SBATCH --job-name=w",
        "#SBATCH --ntasks=4",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --signal=B:TERM@60",
    ]
    assert "\ndiel run w -n 4 &\n" in script


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("2:00:05", 7205),
        ("1-2", 93600),
        ("1-2:30", 95400),
        ("0-0:0:7", 7),
    ],
)
def test_time_limits(limit: str, seconds: int) -> None:
    assert time_limit_s(limit) == seconds


@pytest.mark.parametrize("limit", ["", "0", "1h", "1:2:3:4", "-5", "1-", "1:30\n", "٣"])
def test_what_is_no_time_limit(limit: str) -> None:
    with pytest.raises(LaunchError, match="is no time limit"):
        time_limit_s(limit)


def test_a_short_job_is_warned_later() -> None:
    assert "--signal=B:TERM@15\n" in sbatch_script(JOB, ["diel"], time_limit="1")


@pytest.mark.parametrize("name", ["", "a b", "x\n#SBATCH --wrap=evil", "-x", "$(id)"])
def test_what_is_no_partition(name: str) -> None:
    with pytest.raises(LaunchError, match="is no partition"):
        sbatch_script(JOB, ["diel"], partition=name)


# -- in a shell -----------------------------------------------------------------------------------


def bash(script: str, *flags: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", *flags],
        input=script, text=True, capture_output=True, check=False, timeout=30, **options,
    )  # fmt: skip


@pytest.mark.parametrize("launcher", ["srun", "mpiexec"])
@given(words=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1))
def test_a_shell_reads_any_path_as_one_word(launcher: Any, words: list[str]) -> None:
    script = sbatch_script(JOB, ["diel", *words], launcher=launcher)
    start = script.partition("\n\n")[2].partition(" &\nrun=$!")[0]
    assert shlex.split(start)[3 if launcher == "srun" else 0 :][: len(words) + 1] == [
        *("diel", *words),
    ]


@pytest.mark.parametrize("path", ["/a b", "/$(touch evil)", "/'", '/"', "/a\nb", "/`id`", "/é"])
def test_bash_accepts_it(tmp_path: Path, path: str) -> None:
    script = sbatch_script(JOB, ["diel", "run", path])
    done = bash(script, "-n")
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "%s" "$5"\nexit 7\n')
    (tmp_path / "srun").chmod(0o755)
    done = bash(script, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, cwd=tmp_path)
    assert (done.stdout, done.returncode) == (path, 7)
    assert [one.name for one in tmp_path.iterdir()] == ["srun"]


def test_a_stop_is_passed_on_and_waited_for(tmp_path: Path) -> None:
    (tmp_path / "srun").write_text(
        "#!/bin/sh\ntrap 'sleep 0.3; echo stopped in order; exit 5' TERM\n"
        "echo running\nwhile :; do sleep 0.05; done\n"
    )
    (tmp_path / "srun").chmod(0o755)
    file = tmp_path / "job.sh"
    file.write_text(sbatch_script(JOB, ["diel", "run", "w.toml"]))
    job = subprocess.Popen(
        ["bash", file],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert job.stdout is not None
        assert job.stdout.readline() == "running\n"
        time.sleep(0.1)  # the script is in its wait
        job.send_signal(signal.SIGTERM)
        rest, _ = job.communicate(timeout=20)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    assert (rest, job.returncode) == ("stopped in order\n", 5)


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my study.toml").write_text(
        '[[module]]\nname = "m"\nexecutable = ["true"]\ncopies = 3\nthreads = 2\n'
        '[[group]]\nname = "g"\nmodules = ["m"]\n'
    )
    return tmp_path


def sbatch(*arguments: str) -> object:
    return status_of("sbatch", *arguments)


def test_the_command_prints_the_script(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sbatch("my study.toml", "--per-node", "3", "--time", "2:00:00") == 0
    out = capsys.readouterr().out
    assert bash(out, "-n").returncode == 0
    assert "#SBATCH --job-name=my-study\n#SBATCH --nodes=2\n#SBATCH --ntasks=5\n" in out
    assert f"run '{folder}/my study.toml'" in out


@pytest.mark.usefixtures("folder")
def test_slurm_starts_only_the_mpi_that_it_may_know(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under PyPI's each of its tasks would be a run of its own."""
    for own, words, expected in (
        ("/venv/bin/mpiexec", [], "diel run"),
        ("/venv/bin/mpiexec", ["--launcher", "srun"], "srun"),
        (None, [], "srun"),
        (None, ["--launcher", "mpiexec"], "diel run"),
    ):
        monkeypatch.setattr("diel.executive.sbatch.own_mpiexec", lambda own=own: own)
        assert sbatch("my study.toml", *words) == 0
        start = capsys.readouterr().out.partition("\n\n")[2].partition("\n")[0]
        assert start.startswith("srun ") == (expected == "srun")
        assert (" -n 5 &" in start) == (expected != "srun")


def test_srun_starts_the_diel_of_this_environment(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sbatch("my study.toml", "--launcher", "srun") == 0
    out = capsys.readouterr().out
    assert f"run '{folder}/my study.toml' &\n" in out
    (line,) = [one for one in out.splitlines() if one.startswith("srun")]
    assert Path(shlex.split(line)[3]).name == "diel"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone.toml"], "gone.toml: 1 problem"),
        (["my study.toml", "--time", "soon"], "'soon' is no time limit"),
        (["my study.toml", "--ranks", "4"], "5 needed, 4 available"),
        (["my study.toml", "--nodes", "0"], "must be at least 1"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_is_wrong(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert sbatch(*arguments) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.out == ""
