from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import wait_until

from diel.loading.output import RankOutput, shorten

LIMIT_BYTES = 2**16
LIBC = ctypes.CDLL(None)


@contextlib.contextmanager
def rank_output() -> Iterator[RankOutput]:
    output = RankOutput(LIMIT_BYTES)
    try:
        yield output
    finally:
        output.close()


def test_what_keeps_a_stream_writes_to_the_log_of_whoever_runs(tmp_path: Path) -> None:
    with rank_output() as output:
        handler = logging.StreamHandler()  # with the standard error of now
        kept = sys.stdout.write
        for name in ("a", "b", "a"):
            with output.to(tmp_path / f"{name}.log"):
                print("print in", name)
                handler.emit(
                    logging.LogRecord("x", logging.INFO, "", 0, "log in %s", (name,), None)
                )
                kept(f"kept in {name}\n")
                print("the end of", name, end="")  # no end of line: written when the block ends
        of_b = "print in b\nlog in b\nkept in b\nthe end of b"
        assert (tmp_path / "b.log").read_text() == of_b
        assert (tmp_path / "a.log").read_text() == 2 * of_b.replace("b", "a")


def test_output_of_c_and_of_subprocesses_is_in_the_log(tmp_path: Path) -> None:
    with rank_output() as output:
        with output.to(tmp_path / "a.log"):
            LIBC.printf(b"of C\n")
            subprocess.run(["sh", "-c", "echo of a program; echo its error >&2"], check=True)
            os.write(1, b"of a descriptor\n")
            faulthandler.dump_traceback()
        with output.to(tmp_path / "b.log"):
            pass
        lines = (tmp_path / "a.log").read_text().splitlines()
        assert {"of C", "of a program", "its error", "of a descriptor"} <= set(lines)
        assert any("test_output.py" in line for line in lines)
        assert (tmp_path / "b.log").read_text() == ""


def close_it() -> None:
    sys.stdout.close()
    sys.stderr.buffer.close()


def detach_it() -> None:
    sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding="latin-1")
    print("through another")


def take_its_descriptor() -> None:
    sys.stdout = os.fdopen(sys.stdout.fileno(), "w", 1)  # which closes it as it goes
    print("through another")


def reconfigure_it() -> None:
    sys.stdout.reconfigure(encoding="ascii", errors="strict", line_buffering=False)  # type: ignore[union-attr]
    print("through another")


def redirect_it() -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        print("nowhere")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    print("nowhere", file=sys.stderr)
    print("through another")


@pytest.mark.parametrize(
    "change", [close_it, detach_it, take_its_descriptor, reconfigure_it, redirect_it]
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_module_may_do_what_it_likes_with_its_streams(
    tmp_path: Path, change: Callable[[], None]
) -> None:
    with rank_output() as output:
        for _ in range(2):
            with output.to(tmp_path / "odd.log"):
                change()
        with output.to(tmp_path / "next.log"):
            print("grüße")
            print("error", file=sys.stderr)
            os.write(1, b"1\n")
            os.write(2, b"2\n")
        assert (sys.stdout, sys.stderr) == (output.stdout, output.stderr)
        assert sorted((tmp_path / "next.log").read_text().split()) == ["1", "2", "error", "grüße"]
        expected = "" if change is close_it else "through another\n" * 2
        assert (tmp_path / "odd.log").read_text() == expected


@pytest.mark.parametrize("is_closed", [True, False])
def test_what_cannot_be_written_fails_its_own_module_and_no_other(
    tmp_path: Path, is_closed: bool
) -> None:
    def write(log: Path) -> None:
        with output.to(log):
            print("of", log.stem, end="")
            if is_closed:
                os.close(1)
            else:
                reading, writing = os.pipe()
                os.dup2(writing, 1)
                os.close(reading)
                os.close(writing)

    with rank_output() as output:
        for name in ("a", "b"):
            with pytest.raises(OSError, match=r"Bad file descriptor|Broken pipe"):
                write(tmp_path / f"{name}.log")
        with output.to(tmp_path / "next.log"):
            print("next")
        texts = [(tmp_path / f"{name}.log").read_text() for name in ("a", "b", "next")]
        assert texts == ["of a", "of b", "next\n"]


def test_a_name_that_is_no_text_can_be_printed(tmp_path: Path) -> None:
    with rank_output() as output:
        with output.to(tmp_path / "a.log"):
            for stream in (sys.stdout, sys.stderr):
                print(os.fsdecode(b"\xff.csv"), file=stream)
        assert (tmp_path / "a.log").read_text() == "\\udcff.csv\n" * 2


# -- logs with a limit ----------------------------------------------------------------------------


def left_out_of(text: str) -> int:
    found = re.findall(r"\.\.\. ([\d,]+) bytes are left out here: log_size .* 65,536 \.\.\.", text)
    assert len(found) == 1
    return int(found[0].replace(",", ""))


def test_of_a_log_that_outgrows_its_limit_the_beginning_and_the_end_stay(tmp_path: Path) -> None:
    with rank_output() as output:
        file, written_bytes = tmp_path / "a.log", 0
        with output.to(file):
            for number in range(50_000):
                written_bytes += sys.stdout.write(f"line {number}\n")
        text = file.read_text()
        assert len(text) <= LIMIT_BYTES
        assert text.startswith("line 0\nline 1\n")
        assert text.endswith("line 49998\nline 49999\n")
        # Whatever is not there is counted, though it was taken out in many steps.
        marker = text[text.index("\n\n...") : text.index("...\n\n") + len("...\n\n")]
        assert left_out_of(text) == written_bytes - (len(text) - len(marker))
        assert output.take_left_out_bytes() == left_out_of(text)
        assert output.take_left_out_bytes() == 0
        with output.to(file):
            sys.stdout.write("x" * 1_000_000)  # no end of line, longer than the limit
        assert LIMIT_BYTES // 4 < file.stat().st_size <= LIMIT_BYTES
        with output.to(file):
            print("the end")
        assert file.read_text().endswith("xxthe end\n")
        assert left_out_of(file.read_text()) > written_bytes


def test_a_log_is_shortened_while_a_rank_waits_for_a_program_that_prints(tmp_path: Path) -> None:
    with rank_output() as output:
        file = tmp_path / "a.log"
        with output.to(file):
            subprocess.run("yes | head -c 300000; echo the end", shell=True, check=True)
            wait_until(lambda: file.stat().st_size <= LIMIT_BYTES)
        assert file.read_text().endswith("y\nthe end\n")
        assert output.take_left_out_bytes() == left_out_of(file.read_text()) > 200_000


def test_a_program_goes_on_behind_the_new_end_of_its_log(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    with file.open("ab", buffering=0) as program:
        program.write(b"begin\n" + b"middle\n" * 20_000)
        assert shorten(file, 2**16) > 2**16
        assert shorten(file, 2**16) == 0
        program.write(b"end\n")
    assert file.read_text().startswith("begin\n")
    assert file.read_text().endswith("middle\nend\n")
    assert shorten(tmp_path / "none.log", 2**16) == 0


def test_a_marker_counts_what_was_left_out_by_another_limit(tmp_path: Path) -> None:
    file = tmp_path / "a.log"
    file.write_bytes(b"line\n" * 100_000)
    first_bytes = shorten(file, 2**18)
    second_bytes = shorten(file, 2**16)
    assert left_out_of(file.read_text()) == first_bytes + second_bytes
