"""Reports on the results that lie in a run's directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import record, status_of

from diel.errors import RunDirectoryError
from diel.loading.reports import conclude_reports, write_reports
from diel.run.directory import RunDirectory
from diel.run.journal import Recorder

ACCOUNT = {
    "rank": 2,
    "host": "node17",
    "copies": ["sweeper.0"],
    "working_s": 3.0,
    "waiting_s": 1.0,
    "communicating_s": 0.0,
}


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    file = tmp_path / "w.toml"
    file.write_text('[workflow]\nname = "study"\n')
    return RunDirectory.create(tmp_path / "runs", "study", file)


def run(directory: RunDirectory, tables: int = 1, *, ends: bool = True, **about: Any) -> None:
    recorder = Recorder(directory)
    recorder.record(
        record("RunStarted", workflow="study", ranks=4, groups=[], diel="1.2", host="h")
    )
    for table in range(1, tables + 1):
        columns = ["trial", "width", "layers", "error", "seconds"][: None if table == 1 else 4]
        recorder.record(
            record(
                "ResultsDeclared",
                module="sweeper",
                columns=columns,
                objective="error",
                maximise=False,
                expected=12,
                **about,
            )
        )
        for trial in range(12):
            row = {"trial": trial, "width": 2**trial, "layers": [1, 2], "error": 1 / (trial + 1)}
            row["seconds"] = 0.5
            recorder.record(
                record("ResultAdded", module="sweeper", row={name: row[name] for name in columns})
            )
    recorder.record(record("TimeAccounted", ranks=[ACCOUNT], modules=[]))
    if ends:
        recorder.record(record("RunEnded", exit_code=0, tuples_left=0))
    recorder.close()


def test_a_report_is_written_on_each_table(directory: RunDirectory) -> None:
    run(directory, tables=2, parameters=["width", "layers"], facts={"device_name": "a fast one"})
    written = write_reports(directory)
    assert [path.name for path in written] == ["report.html", "report-2.html"]
    assert directory.reports() == written
    text = written[0].read_text()
    assert 'class="state finished"' in text
    assert "All 12 trials with a result are shown" in text
    assert "rank 2 on node17: sweeper.0" in text
    assert "For all trials: layers 1x2." in text
    assert "<td>1.2</td>" in text
    assert "<td>a fast one</td>" in text
    assert "name</span> = " in text  # of the workflow file
    assert '"keys":["trial","width","error","seconds"]' in text
    assert "lowest error" in text


def test_results_of_which_nobody_said_what_was_chosen(directory: RunDirectory) -> None:
    run(directory)
    text = write_reports(directory)[0].read_text()
    assert 'id="parallel"' not in text  # no parameter is known, and what is empty is left out


def test_a_table_that_a_module_wrote_itself(directory: RunDirectory) -> None:
    recorder = Recorder(directory)
    recorder.record(record("RunStarted", workflow="study", ranks=4, groups=[]))
    columns = ["trial", "rate", "score", "trainer", "seed"]
    (directory.path / "results.csv").write_text(
        "trial,rate,score,trainer,seed,state\n"
        "0,0.5,0.25,0,17,finished\n1,,0.75,0,18,finished\n2,word,,0,19,killed: 2 GiB\n"
    )
    recorder.record(
        record(
            "ResultsDeclared",
            module="master",
            columns=columns,
            objective="score",
            maximise=True,
            expected=3,
            file="results.csv",
            parameters=["rate"],
        )
    )
    recorder.close()
    text = write_reports(directory)[0].read_text()
    assert "killed: 2 GiB" in text
    assert '"rows":[[0,0.5,0.25,0,17],[1,"\\u2013",0.75,0,18]]' in text
    assert 'class="state running"' not in text  # its lock is free: nobody writes there


def test_a_run_that_has_ended_is_told_to_its_report(directory: RunDirectory) -> None:
    assert conclude_reports(directory) == ""
    run(directory, ends=False)
    write_reports(directory)
    assert "state finished" not in directory.reports()[0].read_text()
    recorder = Recorder(directory)
    recorder.record(record("RunEnded", exit_code=1, tuples_left=0))
    recorder.close()
    assert conclude_reports(directory) == ""
    assert 'class="state failed"' in directory.reports()[0].read_text()


def test_a_file_of_that_name_that_is_no_report_is_left_alone(directory: RunDirectory) -> None:
    run(directory)
    file = directory.path / "report.html"
    file.write_text("<p>mine</p>")
    assert "the report cannot be concluded: this is no report" in conclude_reports(directory)
    assert file.read_text() == "<p>mine</p>"


def test_what_cannot_be_reported_on(directory: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match="holds no results to report on"):
        write_reports(directory)
    with pytest.raises(RunDirectoryError, match="holds no results to report on"):
        write_reports(RunDirectory(tmp_path / "nowhere"))
    directory.journal.write_text("no journal\n")
    with pytest.raises(RunDirectoryError, match="line 1: no record, left out: it is no JSON"):
        write_reports(directory)


def test_the_command(directory: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    run(directory, parameters=["width"])
    assert status_of("report", directory.path) == 0
    assert capsys.readouterr().out == f"{directory.path / 'report.html'}\n"
    assert status_of("report", directory.path / "nowhere") == 2
    assert "holds no results" in capsys.readouterr().err
