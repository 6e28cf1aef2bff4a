"""A user who waits for kernels to be compiled is told so."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from dnn import compilation
from dnn.backend import has_numba
from dnn.compilation import compiling, watched_compilation


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> type[compilation._Account]:
    """Return an account of compilations that has nothing in it yet."""
    fresh = type("_Account", (), {"kernels": 0, "waited_s": 0.0, "is_told": False})
    monkeypatch.setattr(compilation, "_Account", fresh)
    return fresh


def test_a_short_wait_is_not_worth_a_word(account: type[compilation._Account]) -> None:
    said: list[str] = []
    with watched_compilation(said.append):
        for _ in range(3):
            with compiling("there"):
                pass
    assert said == []
    assert account.kernels == 3


def test_who_watches_is_told_of_each_further_kernel(account: type[compilation._Account]) -> None:
    said: list[str] = []
    account.waited_s, account.kernels = 2.0, 4
    with watched_compilation(said.append):
        for _ in range(2):
            with compiling("there"):
                pass
    with compiling("there"):
        pass  # nobody watches any more
    words = "compiling kernels for their first use on this machine ({} so far; they are kept in {})"
    assert said == [words.format(count, "there") for count in (4, 5)]


def test_at_a_terminal_it_is_said_once(
    account: type[compilation._Account],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    account.waited_s = 2.0
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with caplog.at_level(logging.INFO, "dnn"):
        for _ in range(3):
            with compiling("there"):
                pass
    assert capsys.readouterr().err.count("dnn: compiling kernels for their first use") == 1
    assert len(caplog.messages) == 1


@pytest.mark.skipif(not has_numba(), reason="Numba is not installed")
def test_the_kernels_of_the_cpu_are_counted(
    account: type[compilation._Account], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from dnn.backend.cpu import cache

    monkeypatch.setenv("DNN_KERNEL_CACHE", str(tmp_path))
    said: list[str] = []
    account.waited_s = 2.0
    with watched_compilation(said.append):
        cache.entry_of(f"{cache.HEADER}    r[0] = r[1]  # {tmp_path}\n")
    assert account.kernels == 1
    assert str(tmp_path) in said[0]
