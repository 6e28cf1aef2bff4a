"""Batch scripts: what they ask for, that a shell can read them, stops, and jobs that follow."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import status_of

from diel.errors import LaunchError, WorkflowError
from diel.executive.batch_job import Job, job_for, time_limit_s
from diel.executive.batch_scripts import SCHEDULERS, batch_script
from diel.exit_codes import NOT_FINISHED
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


JOB = Job("study", 8, 2, 4, 3, 2, 86400, "gpu,big", "team")
SMALL = Job("w", 4, None, None, 1, 0)
UNEVEN = Job("w", 10, 3, 4, 2, 0, 5400)
HEADS = {
    "slurm": {
        JOB: """\
            #SBATCH --job-name=study
            #SBATCH --nodes=2
            #SBATCH --ntasks=8
            #SBATCH --ntasks-per-node=4
            #SBATCH --cpus-per-task=3
            #SBATCH --gpus-per-node=2
            #SBATCH --time=24:00:00
            #SBATCH --partition=gpu,big
            #SBATCH --account=team
            #SBATCH --signal=B:USR1@60
            """,
        SMALL: """\
            #SBATCH --job-name=w
            #SBATCH --ntasks=4
            #SBATCH --cpus-per-task=1
            #SBATCH --signal=B:USR1@60
            """,
    },
    "pbs": {
        JOB: """\
            #PBS -N study
            #PBS -l select=2:ncpus=12:mpiprocs=4:ompthreads=3:ngpus=2
            #PBS -j oe
            #PBS -l place=scatter
            #PBS -l walltime=24:00:00
            #PBS -q gpu,big
            #PBS -A team
            """,
        SMALL: """\
            #PBS -N w
            #PBS -l select=4:ncpus=1:mpiprocs=1:ompthreads=1
            #PBS -j oe
            """,
        UNEVEN: """\
            #PBS -N w
            #PBS -l select=2:ncpus=8:mpiprocs=4:ompthreads=2+1:ncpus=4:mpiprocs=2:ompthreads=2
            #PBS -j oe
            #PBS -l place=scatter
            #PBS -l walltime=1:30:00
            """,
    },
    "lsf": {
        JOB: """\
            #BSUB -J study
            #BSUB -n 8
            #BSUB -o study-%J.out
            #BSUB -R "span[ptile=4]"
            #BSUB -R "affinity[core(3)]"
            #BSUB -gpu "num=2"
            #BSUB -W 24:00
            #BSUB -q gpu,big
            #BSUB -P team
            """,
        SMALL: """\
            #BSUB -J w
            #BSUB -n 4
            #BSUB -o w-%J.out
            """,
    },
    "flux": {
        JOB: """\
            # flux: --job-name=study
            # flux: --nodes=2
            # flux: --nslots=2
            # flux: --cores-per-slot=12
            # flux: --gpus-per-slot=2
            # flux: --time-limit=86400s
            # flux: --queue=gpu,big
            # flux: --bank=team
            """,
        SMALL: """\
            # flux: --job-name=w
            # flux: --nslots=4
            # flux: --cores-per-slot=1
            """,
    },
}


@pytest.mark.parametrize(
    ("scheduler", "job"), [(name, job) for name, heads in HEADS.items() for job in heads]
)
def test_what_a_scheduler_is_told(scheduler: str, job: Job) -> None:
    script = batch_script(job, "/w.toml", scheduler=scheduler, launcher="mpiexec")
    head, _, rest = script.partition("\n\n")
    assert f"{head}\n" == "#!/bin/bash\n" + textwrap.dedent(HEADS[scheduler][job])
    (start,) = [line for line in rest.splitlines() if line.endswith(" run /w.toml &")] or [
        line for line in rest.splitlines() if " run /w.toml " in line
    ]
    words = shlex.split(start)
    assert Path(words[0]).name == "diel"
    options = ["--ranks", str(job.ranks), "--launcher", "mpiexec"]
    assert words[1:] == ["run", "/w.toml", *options, "&"]


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
    short = SMALL.replace(time_limit_s=60)
    assert "--signal=B:USR1@15\n" in batch_script(short, "w", scheduler="slurm")
    assert "sleep 45 &\n" in batch_script(short, "w", scheduler="pbs")
    assert "sleep 5340 &\n" in batch_script(UNEVEN, "w", scheduler="lsf")
    assert "sleep" not in batch_script(SMALL, "w", scheduler="flux")


@pytest.mark.parametrize("name", ["", "a b", "x\n#SBATCH --wrap=evil", "-x", "$(id)"])
@pytest.mark.parametrize("what", ["queue", "account"])
def test_what_is_no_name(name: str, what: str) -> None:
    with pytest.raises(LaunchError, match=f"is no {what}"):
        job_for(PLAIN, "study.toml", **{what: name})  # type: ignore[arg-type]


# -- in a shell -----------------------------------------------------------------------------------


def bash(script: str, *flags: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", *flags],
        input=script, text=True, capture_output=True, check=False, timeout=30, **options,
    )  # fmt: skip


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the PATH begins with; its diel and its sbatch say what they were told."""
    monkeypatch.setattr("diel.executive.batch_scripts._diel", lambda: "diel")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sbatch", "qsub", "bsub", "flux"):
        says = f"{name} $# $DIEL_RUN_DIR $DIEL_SUBMISSION"
        write_program(programs / name, f'test "$1" != getattr || exec echo f123\necho "{says}"\n')
    return programs


def write_program(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/bash\n{text}")
    file.chmod(0o755)


def path_of(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}:/usr/bin:/bin", "PBS_O_WORKDIR": str(folder)}


@given(words=st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0/")), min_size=1))
def test_a_shell_reads_any_path_as_one_word(words: list[str]) -> None:
    path = f"/{'/'.join(words)}"
    script = batch_script(JOB, path, scheduler="slurm")
    start = script.partition("by what.\n")[2].partition(" &\nrun=$!")[0]
    assert shlex.split(start)[1:] == ["run", os.path.abspath(path), "--ranks", "8"]


@pytest.mark.parametrize("path", ["/a b", "/$(touch evil)", "/'", '/"', "/a\nb", "/`id`", "/é"])
def test_bash_passes_it_on(stand_in: Path, tmp_path: Path, path: str) -> None:
    write_program(stand_in / "diel", 'printf "%s" "$2"\nexit 7\n')
    script = batch_script(JOB, path, scheduler="slurm")
    done = bash(script, env=path_of(stand_in), cwd=tmp_path)
    assert (done.stdout, done.returncode, done.stderr) == (path, 7, "")
    assert [one.name for one in tmp_path.iterdir()] == ["programs"]


@pytest.mark.parametrize("requeue", [0, 3])
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_no_script_has_a_mistake_that_shellcheck_finds(
    scheduler: str, requeue: int, tmp_path: Path
) -> None:
    share = tmp_path / "a b.shared"
    script = batch_script(JOB, "/a b.toml", scheduler=scheduler, requeue=requeue, share=share)
    assert f"--share '{share}'" in script
    assert (done := bash(script, "-n")).returncode == 0, done.stderr
    if shutil.which("shellcheck") is None:
        pytest.skip("there is no shellcheck: bash alone has looked at it")
    file = tmp_path / "job.sh"
    file.write_text(script)
    done = subprocess.run(["shellcheck", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


class BatchJob:
    """A script that runs as a scheduler starts it, from a file; its diel waits for a signal."""

    def __init__(self, folder: Path, script: str, **environment: str) -> None:
        file = folder / "job.sh"
        file.write_text(script)
        self.process = subprocess.Popen(
            ["bash", file],
            cwd=folder,
            env={**path_of(folder), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def wait(self) -> tuple[list[str], int]:
        """Return the lines that it printed, and its exit status."""
        try:
            text, _ = self.process.communicate(timeout=20)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        return text.splitlines(), self.process.returncode


WAITS = f"""trap 'sleep 0.2; echo USR1; exit {NOT_FINISHED}' USR1
trap 'sleep 0.2; echo TERM; exit {NOT_FINISHED}' TERM
echo "$@"
while :; do sleep 0.05; done
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stop_is_passed_on_and_waited_for(number: signal.Signals, stand_in: Path) -> None:
    write_program(stand_in / "diel", WAITS)
    job = BatchJob(stand_in, batch_script(JOB, "/w.toml", scheduler="slurm"))
    assert job.process.stdout is not None
    assert job.process.stdout.readline() == "run /w.toml --ranks 8\n"
    job.process.send_signal(number)
    assert job.wait() == ([number.name.removeprefix("SIG")], NOT_FINISHED)


@pytest.mark.parametrize("name", ["TERM", "USR1"])
def test_a_stop_that_comes_while_the_run_starts_is_passed_on(name: str, stand_in: Path) -> None:
    write_program(stand_in / "diel", WAITS.replace('echo "$@"', "touch began"))
    script = batch_script(JOB, "/w.toml", scheduler="slurm")
    early = f"until [ -e began ]; do sleep 0.05; done\nkill -{name} $$\nrun=$!"
    assert BatchJob(stand_in, script.replace("run=$!", early)).wait() == ([name], NOT_FINISHED)


IDS = {"slurm": "SLURM_JOB_ID", "pbs": "PBS_JOBID", "lsf": "LSB_JOBID"}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_job_that_was_too_short_is_followed_by_another(scheduler: str, stand_in: Path) -> None:
    """The script's own timer warns it, but Slurm does so itself."""
    write_program(stand_in / "diel", WAITS)
    short = JOB.replace(time_limit_s=1)
    script = batch_script(short, "/w.toml", scheduler=scheduler, requeue=2)
    number = IDS.get(scheduler, "UNUSED")

    def printed(submission: int, run_dir: str) -> list[str]:
        own = {"DIEL_RUN_DIR": run_dir, "DIEL_SUBMISSION": str(submission)} if submission else {}
        job = BatchJob(stand_in, script, **{number: "f123"}, **own)
        if scheduler == "slurm":
            assert job.process.stdout is not None
            first = job.process.stdout.readline()
            job.process.send_signal(signal.SIGUSR1)
            lines, status = job.wait()
            lines.insert(0, first.strip())
        else:
            lines, status = job.wait()
        assert status == NOT_FINISHED
        assert lines[0] == f"run /w.toml --ranks 8 --run-dir {run_dir}"
        assert lines[1] == "USR1"
        return lines[2:]

    submit = {"slurm": "sbatch 1", "pbs": "qsub 3", "lsf": "bsub 0", "flux": "flux 2"}[scheduler]
    assert printed(0, "runs/study-f123") == [f"{submit} runs/study-f123 1"]
    (line,) = printed(2, "my runs/x")
    assert line == "submitted again 2 times already: diel run --resume my runs/x goes on"


def test_a_job_that_has_ended_or_was_cancelled_is_not_followed(stand_in: Path) -> None:
    script = batch_script(JOB, "/w.toml", scheduler="pbs", requeue=2)
    write_program(stand_in / "diel", "exit 0\n")
    assert BatchJob(stand_in, script).wait() == ([], 0)
    write_program(stand_in / "diel", WAITS)
    job = BatchJob(stand_in, script)
    assert job.process.stdout is not None
    job.process.stdout.readline()
    job.process.send_signal(signal.SIGTERM)
    assert job.wait() == (["TERM"], NOT_FINISHED)


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
    assert f"run '{folder}/my study.toml' --ranks 5 &\n" in out


def test_the_scheduler_is_the_one_that_is_there(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(folder / "true", "")
    monkeypatch.setenv("PATH", str(folder))
    assert status_of("batch", "my study.toml") == 2
    assert "--scheduler slurm, pbs, lsf, flux" in capsys.readouterr().err
    write_program(folder / "bsub", "")
    assert status_of("batch", "my study.toml", "--queue", "long", "--account", "team") == 0
    assert "#BSUB -q long\n#BSUB -P team\n" in capsys.readouterr().out
    assert status_of("batch", "my study.toml", "--scheduler", "flux", "--requeue", "4") == 0
    assert 'flux batch "$script"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone.toml"], "gone.toml: 1 problem"),
        (["my study.toml", "--time", "soon"], "'soon' is no time limit"),
        (["my study.toml", "--ranks", "4"], "5 needed, 4 available"),
        (["my study.toml", "--nodes", "0"], "must be at least 1"),
        (["my study.toml", "--queue", "a b"], "'a b' is no queue"),
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
