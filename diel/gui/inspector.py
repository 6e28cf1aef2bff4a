"""Inspect a text in a child process, which may hang, exit or crash.

The server of the page itself runs no code of modules: see `diel.gui.inspection`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from typing import Any, Final

from diel.errors import Problem
from diel.gui.inspection import Findings, Inspection, inspect, inspection_of, runs_code
from diel.processes import python_command, signal_name, start_helper
from diel.workflow.load import Draft
from diel.workflow.source import LARGEST_FILE_BYTES

_LIMIT_S: Final = 20.0
_END_S: Final = 5.0  # for a killed process to be gone
_POLL_S: Final = 0.01
_AT_IMPORT: Final = "is data loaded outside of a function?"
_CODE: Final = (
    "from diel.processes import end_with_parent; end_with_parent(); "
    "from diel.gui.inspection import main; main({})"
)


def code_state(draft: Draft) -> tuple[Any, ...]:
    """Return names, times and sizes of the Python files of modules, to see when they change."""
    folder = draft.file.parent
    files = {location.file for location in draft.locations.values() if location.file is not None}
    for place in {folder, *(file.parent for file in files)}:
        with contextlib.suppress(OSError):
            files |= set(place.glob("*.py"))
    found = []
    for file in sorted(files):
        with contextlib.suppress(OSError):
            status = file.stat()
            found.append((str(file), status.st_mtime_ns, status.st_size))
    return tuple(found)


class Inspector:
    """Inspects texts one after another, each in a process of its own."""

    def __init__(self, limit_s: float = _LIMIT_S) -> None:
        self._limit_s = limit_s
        self._helper: _Helper | None = None

    async def inspect(self, draft: Draft) -> Inspection | None:
        """Return the inspection of a draft; None if it was stopped, also by a later inspection."""
        self.stop()
        if not runs_code(draft):
            return await asyncio.to_thread(lambda: inspection_of(draft, inspect(draft)))
        try:
            helper = self._helper = _Helper()
        except OSError as error:
            message = f"no process can be started to check options: {error.strerror or error}"
            return _failed(draft, Problem("", message))
        try:
            found = await helper.answer(draft, self._limit_s)
        finally:
            await helper.end()
        if self._helper is not helper:
            return None
        self._helper = None
        return found

    def stop(self) -> None:
        """Kill the process that inspects a text now, if there is one."""
        if self._helper is not None:
            self._helper.kill()
            self._helper = None


class _Helper:
    """The process that inspects one text, and the socket to it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._module, self._begins = "", "starting a process that checks options"
        with theirs:
            try:
                # Python compares the times of compiled files by the second: of a file that is being
                # edited, an older version might be imported.
                environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
                command = python_command(_CODE.format(theirs.fileno()))
                self._process = start_helper(command, theirs.fileno(), environment=environment)
            except BaseException:
                self._socket.close()
                raise

    async def answer(self, draft: Draft, limit_s: float) -> Inspection:
        """Return the inspection; if the process hangs or dies, one with that as its problem."""
        try:
            findings = await asyncio.wait_for(self._ask(draft), limit_s)
        except asyncio.TimeoutError:
            return self._failed(draft, f"took more than {limit_s:g} s")
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            return self._failed(draft, f"gave no answer that could be read: {error}")
        if findings is None:
            await self.end(_END_S)
            return self._failed(draft, f"ended Python{_how(self._process.returncode)}")
        return await asyncio.to_thread(inspection_of, draft, findings)

    async def _ask(self, draft: Draft) -> Findings | None:
        """Send the text to the process, return its findings; None if it ended without any."""
        reader, writer = await asyncio.open_unix_connection(
            sock=self._socket, limit=4 * LARGEST_FILE_BYTES
        )
        try:
            asked = {"text": draft.source, "file": str(draft.file), "given": draft.given}
            with contextlib.suppress(ConnectionError):
                writer.write(json.dumps(asked).encode() + b"\n")
                await writer.drain()
                while line := await reader.readline():
                    said: dict[str, Any] = json.loads(line)
                    if "found" in said:
                        return Findings.of_plain(said["found"])
                    self._module, self._begins = str(said["module"]), str(said["begins"])
            return None
        finally:
            writer.close()

    def _failed(self, draft: Draft, how: str) -> Inspection:
        places = {module.name: f"module[{index}]" for index, module in draft.modules}
        path, remedy = places.get(self._module, ""), "mend it, and check again"
        if self._begins.startswith("importing"):
            path, remedy = f"{path}.function" if path else "", _AT_IMPORT
        return _failed(draft, Problem(path, f"{self._begins} {how}", remedy))

    def kill(self) -> None:
        """Kill the process and those that it has started, unless these have left its session."""
        if self._process.returncode is None:  # so that no other process can have its id
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def end(self, patience_s: float = 0.0) -> None:
        """Wait for the process to end, kill it and the processes that it has started, reap it."""
        if self._process.returncode is not None:
            return
        for limit_s in (patience_s, _END_S):
            for _ in range(round(limit_s / _POLL_S)):
                if self._is_over():
                    break
                await asyncio.sleep(_POLL_S)
            self.kill()
        self._process.poll()

    def _is_over(self) -> bool:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT  # not reaped, so that its id stays taken
        return os.waitid(os.P_PID, self._process.pid, flags) is not None


def _how(exit_code: int | None) -> str:
    if exit_code is None:
        return ""
    if exit_code >= 0:
        return f" with exit code {exit_code}"
    return f" by {signal_name(-exit_code)}"


def _failed(draft: Draft, problem: Problem) -> Inspection:
    return Inspection(problems=draft.in_order([problem]), source=draft.source)
