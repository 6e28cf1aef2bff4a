"""What is said of a module that fails or crashes."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from diel.errors import TagError
from diel.executive.outcome import detail, noting_crashes
from diel.executive.worker import _call
from diel.text import describe_error, describe_traceback
from diel.tuples.tags import encode_tag


def error_of(function: Callable[[], object]) -> BaseException:
    with pytest.raises((TagError, OSError, RuntimeError)) as caught:
        _call(lambda _: function(), None)  # type: ignore[arg-type]
    assert caught.value.__traceback__ is not None
    return caught.value.with_traceback(caught.value.__traceback__.tb_next)


def wrong_tag() -> None:
    encode_tag((1, [2]))


def full_disk() -> None:
    try:
        raise KeyError("a cache of ours")
    except KeyError:
        with open("/dev/full", "w") as file:
            file.write("x")


def of_its_own() -> None:
    try:
        wrong_tag()
    except TagError as error:
        raise RuntimeError("no such station") from error


def frames(text: str) -> list[str]:
    return [line.split(" in ")[-1] for line in text.splitlines() if line.startswith("  File")]


def test_an_error_that_diel_found_ends_at_the_modules_own_line() -> None:
    error = error_of(wrong_tag)
    text = detail(error)
    assert describe_error(error).startswith("TagError: (1, [2]): a tag is a string")
    assert frames(text) == ["<lambda>", "wrong_tag"]
    assert text.count("Traceback") == 1
    assert text.splitlines()[-1].startswith("diel.errors.TagError: (1, [2])")


class Evil(Exception):
    """An exception of a module that raises whatever is asked of it."""

    def __init__(self, raised: type[BaseException]) -> None:
        super().__init__("a")
        self.raised = raised

    def __str__(self) -> str:
        raise self.raised

    __repr__ = __str__


@pytest.mark.parametrize("raised", [MemoryError, SystemExit, RecursionError, KeyboardInterrupt])
def test_an_exception_that_cannot_be_told_is_named(
    raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Evil) as caught:
        raise Evil(raised)
    error = caught.value
    assert describe_error(error) == "Evil"
    assert "Evil" in describe_traceback(error)
    assert "Traceback" in detail(error)

    def without_memory(*_: object, **__: object) -> None:
        raise raised

    with monkeypatch.context() as patch:
        patch.setattr(traceback, "TracebackException", without_memory)
        told = (describe_traceback(error), detail(error))
    assert told == ("Evil", "")


def test_what_a_module_raises_itself_is_told_with_what_led_to_it() -> None:
    text = detail(error_of(of_its_own))
    assert frames(text) == ["of_its_own", "wrong_tag", "<lambda>", "of_its_own"]
    assert text.count("Traceback") == 2
    assert text.splitlines()[-1] == "RuntimeError: no such station"


def test_a_full_disk_in_the_modules_own_code_is_told_whole() -> None:
    error = error_of(full_disk)
    assert describe_error(error) == "OSError: [Errno 28] No space left on device"
    assert "a cache of ours" in detail(error)


def test_a_full_disk_within_diel_is_one_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def put(tag: object) -> None:
        try:
            raise KeyError(tag)
        except KeyError as error:
            raise OSError(28, "No space left on device") from error

    where = put.__code__.replace(co_filename=_call.__code__.co_filename)
    monkeypatch.setattr(put, "__code__", where)
    text = detail(error_of(lambda: put("a")))
    assert set(frames(text)) == {"<lambda>"}
    assert text.count("Traceback") == 1


def test_an_error_before_the_module_began_has_no_traceback() -> None:
    with pytest.raises(TagError) as caught:
        encode_tag((1, [2]))
    assert detail(caught.value.with_traceback(caught.tb.tb_next)) == ""


CRASHES = {
    "ctypes.string_at(0)": "Fatal Python error: Segmentation fault",
    "os.abort()": "Fatal Python error: Aborted",
    "os._exit(7)": "os._exit(7)",
}


@pytest.mark.parametrize("what", sorted(CRASHES))
def test_a_crash_leaves_the_line_of_python(what: str, tmp_path: Path) -> None:
    note = tmp_path / "rank-1.crash"
    script = tmp_path / "module.py"
    script.write_text(
        "import ctypes, os, sys\nfrom pathlib import Path\n"
        "from diel.executive.outcome import noting_crashes\n"
        f"def run():\n    {what}\n"
        "with noting_crashes(Path(sys.argv[1])):\n    run()\n"
    )
    ended = subprocess.run([sys.executable, script, note], capture_output=True, timeout=30)
    assert ended.returncode == {"os._exit(7)": 7, "os.abort()": -6}.get(what, -11)
    first, *lines = note.read_text().splitlines()
    assert first == CRASHES[what]
    assert any(f'"{script}", line 5 in run' in line for line in lines)


def test_a_rank_that_ends_well_leaves_no_note_nor_does_its_fork(tmp_path: Path) -> None:
    note, leave = tmp_path / "rank-1.crash", os._exit
    with noting_crashes(note):
        assert note.read_bytes() == b""
        if not (child := os.fork()):
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert note.read_bytes() == b""
    assert not note.exists()
    assert os._exit is leave
