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
from hypothesis import given, settings
from hypothesis import strategies as st
from support import case_count, status_of

from diel.errors import LaunchError, WorkflowError
from diel.executive.batch_scripts import SCHEDULERS, Job, batch_script, job_for, time_limit_s
from diel.exit_codes import NOT_FINISHED
from diel.loading.environment import THREAD_VARIABLES
from diel.workflow.model import Group, Module, Workflow, folder_name


def workflow(**modules: dict[str, Any]) -> Workflow:
    return Workflow(
        name="study",
        modules=tuple(
            Module(name=name, function="m:f", **module) for name, module in modules.items()
        ),
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
            #BSUB -gpu "num=2/host"
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
    """A folder that the PATH begins with; its diel and its sbatch say what they were told.

    Of what it reads from standard input bsub says the first line.
    """
    monkeypatch.setattr("diel.executive.batch_scripts._diel", lambda: "diel")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sbatch", "qsub", "bsub", "flux"):
        begins = {
            "bsub": "read -r line; set -- $line\n",
            "flux": 'case $1 in getattr) exec echo f123 ;; job) exec echo "$3" ;; esac\n',
        }.get(name, "")
        says = f'echo "{name} $* $DIEL_RUN_DIR $DIEL_SUBMISSION"\n'
        write_program(programs / name, begins + says)
    return programs


def write_program(file: Path, text: str) -> None:
    file.write_text(f"#!/bin/bash\n{text}")
    file.chmod(0o755)


def path_of(folder: Path) -> dict[str, str]:
    return {"PATH": f"{folder}:/usr/bin:/bin", "PBS_O_WORKDIR": str(folder)}


PATHS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\0/\n"), min_size=1), min_size=1
).map(lambda words: os.path.normpath(f"/{'/'.join(words)}"))
JOBS = st.builds(
    Job,
    name=st.text().map(folder_name),
    ranks=st.just(8),
    nodes=st.sampled_from([None, 2]),
    per_node=st.just(4),
    threads=st.integers(1, 3),
    gpus_per_node=st.integers(0, 2),
    time_limit_s=st.sampled_from([None, 5400]),
    queue=st.sampled_from([None, "gpu,big"]),
)


def test_diel_is_told_the_paths_whatever_they_are(stand_in: Path, tmp_path: Path) -> None:
    write_program(stand_in / "diel", "printf '%s\\0' \"$@\"\n")
    environment = path_of(stand_in) | dict.fromkeys(IDS.values(), "7.x")

    @settings(max_examples=case_count(30), deadline=None)
    @given(JOBS, PATHS, PATHS, PATHS, st.sampled_from(sorted(SCHEDULERS)), st.booleans())
    def check(job: Job, file: str, share: str, own: str, scheduler: str, requeue: bool) -> None:
        choices = ["--set", f"name={own}", "--force"]
        requeue = requeue and (SCHEDULERS[scheduler].warns or job.time_limit_s is not None)
        more = {"requeue": 1, "script_file": Path(own)} if requeue else {}
        script = batch_script(
            job, file, scheduler=scheduler, share=Path(share), choices=choices,
            **more,  # type: ignore[arg-type]
        )  # fmt: skip
        done = subprocess.run(
            ["bash", "-c", script],
            env=environment, cwd=tmp_path, capture_output=True, check=False, timeout=30,
        )  # fmt: skip
        said, errors = done.stdout.decode(), done.stderr.decode()
        expected = ["run", file, "--ranks", "8", "--share", share, *choices]
        if requeue:
            expected += ["--run-dir", f"runs/{job.name}-{'f123' if scheduler == 'flux' else '7.x'}"]
        assert (said.split("\0")[:-1], done.returncode) == (expected, 0), errors
        assert errors == (f"{own} is gone: no job will follow this one\n" if requeue else "")
        head, *body = script.split("\n\n")
        options = [line.startswith(SCHEDULERS[scheduler].sentinel) for line in head.split("\n")[1:]]
        assert options
        assert all(options)
        body = "\n\n".join(body).split("\n")
        assert not any(line.startswith(SCHEDULERS[scheduler].sentinel) for line in body)

    check()
    assert [path.name for path in tmp_path.iterdir()] == ["programs"]


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="there is no shellcheck")
def test_no_script_has_a_mistake_that_shellcheck_finds(tmp_path: Path) -> None:
    files = []
    for scheduler in SCHEDULERS:
        for requeue in (0, 3):
            files.append(tmp_path / f"{scheduler}{requeue}.sh")
            script = batch_script(
                JOB,
                "/a b.toml",
                scheduler=scheduler,
                requeue=requeue,
                script_file=files[-1],
                share=tmp_path,
            )
            files[-1].write_text(script)
    done = subprocess.run(["shellcheck", *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", ["/a\nb", "/a\n#PBS -l x", "/\udc80"])
def test_a_path_that_no_script_can_name(path: str) -> None:
    for odd in ({"file": path}, {"share": Path(path)}, {"requeue": 1, "script_file": Path(path)}):
        with pytest.raises(LaunchError, match="no script can name it"):
            batch_script(JOB, **{"file": "/w.toml", "scheduler": "pbs", **odd})  # type: ignore[arg-type]


def test_a_script_that_submits_itself_again_knows_where_it_lies() -> None:
    with pytest.raises(LaunchError, match=r"with --output job\.sh"):
        batch_script(JOB, "/w.toml", scheduler="slurm", requeue=1)


def test_of_a_name_pbs_is_told_what_it_takes() -> None:
    """As OpenPBS's ``check_job_name`` and its manual want it."""
    names = {"été-2": "w_t_-2", "2024.a_b": "2024.a_b", "日本": "w__"}
    for name, told in names.items():
        script = batch_script(JOB.replace(name=name), "/w.toml", scheduler="pbs")
        assert f"#PBS -N {told}\n" in script


class BatchJob:
    """A script that runs as a scheduler starts it, from a copy; its diel waits for a signal."""

    def __init__(self, folder: Path, script: str, **environment: str) -> None:
        file = folder / "spooled"
        file.write_text(script)
        (folder / "job.sh").write_text("the file that was submitted\n")
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


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_run_is_told_when_it_will_be_asked_to_end(scheduler: str, stand_in: Path) -> None:
    write_program(stand_in / "diel", 'echo "$((DIEL_END_TIME - $(date +%s)))"')
    job = JOB.replace(time_limit_s=5400)
    ((left,), status) = BatchJob(stand_in, batch_script(job, "/w.toml", scheduler=scheduler)).wait()
    assert status == 0
    assert 0 < int(left) <= 5340
    endless = JOB.replace(time_limit_s=None)
    assert "DIEL_END_TIME" not in batch_script(endless, "/w.toml", scheduler=scheduler)


IDS = {"slurm": "SLURM_JOB_ID", "pbs": "PBS_JOBID", "lsf": "LSB_JOBID"}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_job_that_was_too_short_is_followed_by_another(scheduler: str, stand_in: Path) -> None:
    """The script's own timer warns it, but Slurm does so itself."""
    write_program(stand_in / "diel", WAITS)
    short = JOB.replace(time_limit_s=1)
    file = stand_in / "job.sh"
    script = batch_script(short, "/w.toml", scheduler=scheduler, requeue=2, script_file=file)
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

    submit = {
        "slurm": f"sbatch {file}",
        "pbs": f"qsub -v DIEL_RUN_DIR,DIEL_SUBMISSION {file}",
        "lsf": "bsub the file that was submitted",
        "flux": f"flux --parent batch {file}",
    }[scheduler]
    assert printed(0, "runs/study-f123") == [f"{submit} runs/study-f123 1"]
    (line,) = printed(2, "my runs/x")
    assert line == "no requeue is left of 2: diel run --resume my runs/x goes on"


def test_a_job_that_has_ended_or_was_cancelled_is_not_followed(stand_in: Path) -> None:
    file = stand_in / "job.sh"
    script = batch_script(JOB, "/w.toml", scheduler="pbs", requeue=2, script_file=file)
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
    more = ("--scheduler", "flux", "--requeue", "4", "--output", "a job.sh")
    assert status_of("batch", "my study.toml", *more) == 2
    assert "Flux warns no script" in capsys.readouterr().err
    assert status_of("batch", "my study.toml", *more, "--time", "60") == 0
    assert capsys.readouterr().out == ""
    assert f"script='{folder}/a job.sh'\n" in (folder / "a job.sh").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gone.toml"], "gone.toml: 1 problem"),
        (["my study.toml", "--time", "soon"], "'soon' is no time limit"),
        (["my study.toml", "--ranks", "4"], "5 needed, 4 available"),
        (["my study.toml", "--nodes", "0"], "must be at least 1"),
        (["my study.toml", "--queue", "a b"], "'a b' is no queue"),
        (["my study.toml", "--output", "gone/job.sh"], "gone/job.sh cannot be written"),
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
