"""What rank 0 makes of what it hears."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from diel.comm.meter import Times
from diel.coupling.messages import MessageCounts
from diel.executive import messages
from diel.executive.deadlock import WaitWatch
from diel.executive.listener import Listener, StatusWriter, TimeTable
from diel.executive.plans import CopyPlan, ModulePlan
from diel.run.directory import RunDirectory
from diel.run.records import MessageLogged, ModuleTimes, ProgressMade, ResultAdded

SERVER, FIRST, SECOND = 1, 2, 3
PLAN = CopyPlan(7, "g", "a", 0, 1, (FIRST, SECOND), 8, (FIRST, SECOND))
SPENT = Times(working_s=10.0, waiting_s=1.0)


class Heard:
    """A listener, and where it notes things."""

    def __init__(self, folder: Path, **policy: Any) -> None:
        self.records: list[Any] = []
        self.waits = WaitWatch()
        self.time_table = TimeTable([SERVER], [FIRST, SECOND], lambda rank: "here")
        self.time_table.note_order(PLAN)
        recorder: Any = SimpleNamespace(record=self.records.append)
        self.status = StatusWriter(RunDirectory(folder), self.waits)
        self.states: list[Any] = []
        plan: Any = SimpleNamespace(
            server_ranks=(SERVER,),
            pool=(FIRST, SECOND),
            modules={("g", "a"): ModulePlan("a", 1, 2, **policy)},
        )
        self.listener = Listener(
            recorder,
            plan,
            plan_of={7: PLAN}.__getitem__,
            waits=self.waits,
            status=self.status,
            time_table=self.time_table,
            state_saved=self.states.append,
        )

    def hear(self, report: Any, rank: int = FIRST) -> Any:
        return self.listener.hear(rank, report)


@pytest.fixture
def heard(tmp_path: Path) -> Heard:
    return Heard(tmp_path)


def waiting(what: str = "tget('x')") -> messages.Waiting:
    return messages.Waiting(7, what, "'x'", False, True, (0,), 1.0)


def test_what_the_scheduler_has_to_be_told(heard: Heard) -> None:
    for report in (
        messages.RankFinished(7, FIRST, "value"),
        messages.RankFailed(7, FIRST, "E: x", "here", "..."),
        messages.RankLeft(7, FIRST),
        messages.ModuleCommAsked(7, FIRST),
    ):
        assert heard.hear(report) is report
    assert heard.records == []


def test_what_is_only_noted(heard: Heard) -> None:
    progress = ProgressMade(module="a", copy=0, done=1, total=None, text="")
    assert heard.hear(messages.Recorded(progress)) is None
    assert heard.hear(messages.ServerStatus(1, 2, 3), SERVER) is None
    assert heard.hear(messages.RankStopped(7)) is None
    saved = messages.StateSaved("a.0.0.g.0_1.zip")
    assert heard.hear(saved) is None
    assert (heard.records, heard.states) == ([progress], [saved])


def test_progress_goes_to_the_status_and_now_and_then_to_the_journal(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]
    monkeypatch.setattr("diel.executive.listener.time.monotonic", lambda: now_s[0])
    for tenth in range(1, 36_000 * 2):  # two hours
        now_s[0] = heard.listener._started_s + tenth / 10
        progress = ProgressMade(module="a", copy=tenth % 2, done=tenth, total=None, text="t")
        heard.hear(messages.Recorded(progress))
    done = [record.done for record in heard.records]
    assert done[:4] == [1, 2, 11, 12]  # each copy at first, and again after a second
    assert 300 < len(done) < 2000
    heard.hear(messages.Recorded(progress.replace(done=5, total=5)))
    assert heard.records[-1].done == 5  # its end at once
    assert sorted(heard.status._progress) == ["a.0", "a.1"]
    heard.status.forget_progress("a.1")
    assert [one["done"] for one in heard.status._progress.values()] == [71_998]


def test_messages_that_nobody_received_are_a_warning_of_their_copy(heard: Heard) -> None:
    heard.hear(messages.RankFinished(7, SECOND, leftover_messages=2), SECOND)
    (message,) = heard.records
    assert isinstance(message, MessageLogged)
    assert message.name == "a.0"
    assert message.text.startswith("2 message(s)")
    assert "rank 1 of the copy" in message.text


@pytest.mark.parametrize(
    "over",
    [
        messages.WaitOver(7),
        messages.RankFinished(7, FIRST),
        messages.RankFailed(7, FIRST, "E", "here"),
        messages.RankLeft(7, FIRST),
    ],
    ids=lambda report: type(report).__name__,
)
def test_a_wait_is_known_until_it_is_over(heard: Heard, over: Any) -> None:
    heard.hear(waiting())
    assert list(heard.waits.waits) == [FIRST]
    heard.hear(over)
    assert heard.waits.waits == {}


def test_a_put_that_waits_for_room_is_said_at_once(heard: Heard) -> None:
    for _ in range(2):  # a wait is reported again if messages came meanwhile
        heard.hear(waiting("tput('x')"))
    assert len(heard.records) == 1
    assert heard.records[0].text == "tput('x') waits: the tuple server is full, or slow to answer"


@pytest.mark.parametrize(("policy", "has_timeout"), [("stop", False), ("continue", True)])
def test_a_time_limit_that_does_not_end_the_run_is_a_timeout(
    tmp_path: Path, policy: str, has_timeout: bool
) -> None:
    heard = Heard(tmp_path, on_failure=policy, time_limit_s=60.0)
    heard.hear(waiting())
    assert heard.waits.waits[FIRST].report.has_timeout is has_timeout


def test_goodbyes_are_counted(heard: Heard) -> None:
    heard.hear(messages.Goodbye(tuples_left=4), SERVER)
    heard.hear(messages.Goodbye())
    assert heard.listener.present == {SECOND}
    assert heard.listener.tuples_left == 4


def test_late_reports_change_nothing_but_the_books(heard: Heard) -> None:
    heard.hear(waiting())
    heard.listener.hear_late(
        FIRST, messages.RankFinished(7, FIRST, None, 1, MessageCounts(), SPENT)
    )
    assert list(heard.waits.waits) == [FIRST]
    assert heard.records == []
    result = ResultAdded(module="a", row={})
    heard.listener.hear_late(FIRST, messages.Recorded(result))
    heard.listener.hear_late(FIRST, messages.Goodbye())
    assert heard.records == [result]
    assert FIRST not in heard.listener.present
    assert heard.time_table.record().modules == [ModuleTimes("a", 1, *SPENT)]
