"""Workers of other runs, and masters that share a sweep: through files, on a clock of the test."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import THOROUGH, record, wait_until
from unit.modules.sweeping import GRID, Sweep

from diel.errors import ModuleFailed, RunStopped
from diel.run.journal import JournalWriter
from diel.testing import ModuleRun
from modules.sweep.joined_workers import JoinedWorkers, MasterLink, WorkerChange
from modules.sweep.joining import (
    SILENCE_S,
    Identity,
    is_finished,
    lease_message,
    lease_of,
    list_workers,
    order_message,
    order_of,
    outcome_message,
    report_message,
)
from modules.sweep.leases import TrialQueue
from modules.sweep.ledger import Ledger, LedgerError, LedgerReplaced, records_of
from modules.sweep.messages import IntermediateReport, Lease, Outcome, SweepOrder
from modules.sweep.shared import Leader, LedgerCopy, Participation, Terms

ORDER = SweepOrder("here", seed=5, strategy=None, wants_reports=True, quarantined=frozenset({3}))


class Clock:
    """Seconds from anywhere, which pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Meeting]:
    with Meeting(tmp_path) as there:
        yield there


def identity(folder: Path, name: str = "node-1") -> Identity:
    return replace(Identity.of_this_process(folder), name=name)


class Meeting:
    """A master and workers of other runs in one folder."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.ledger = folder / "trials.jsonl"
        self.workers = self.master()
        self.links: list[MasterLink] = []
        self.heard()

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *error: object) -> None:
        self.workers.close()
        for link in self.links:
            link.close()

    def master(self) -> JoinedWorkers:
        return JoinedWorkers(self.ledger, lambda: ORDER, 2, clock=self.clock)

    def link(self, name: str = "node-1", trainers: int = 2) -> MasterLink:
        me = identity(self.ledger.parent, name)
        self.links.append(MasterLink(self.ledger, me, trainers, clock=self.clock))
        return self.links[-1]

    def heard(self, after_s: float = 1.0) -> list[Any]:
        """Return what the master hears, some time later."""
        self.clock.now_s += after_s
        self.workers.look()
        found = []
        while (message := self.workers.next_message()) is not None:
            found.append(message)
        return found

    def told(self, link: MasterLink, after_s: float = 1.0) -> list[dict[str, Any]]:
        self.clock.now_s += after_s
        link.look()
        found = []
        while (message := link.next_message()) is not None:
            found.append(message)
        return found


def lease(number: int, points: int = 2) -> Lease:
    return Lease("here", number, number * 10, number * 10 + points, [{"x": 1.5}] * points)


def outcome(of: Lease, trials: int = 2) -> Outcome:
    metrics = [{"score": float("nan")}, {"score": 0.1 + 0.2}][:trials]
    return Outcome("there", of.number, of.start, 1, [], metrics, [1.0] * trials, [0.5] * trials)


def test_a_worker_takes_leases_and_leaves(meeting: Meeting) -> None:
    assert meeting.heard() == []
    link = meeting.link()
    (came,) = meeting.heard()
    assert "node-1 takes part, with 2 trainers" in came.text
    assert meeting.workers.here == {"node-1": 2}
    order, stops = meeting.told(link)
    assert order_of(order, "there", "a") == replace(ORDER, session="there", run_session="a")
    assert stops == {"stops": [], "time": 0}

    assert meeting.workers.least_busy(None) == (0.0, "node-1")
    given_out = lease(7)
    meeting.workers.give("node-1", given_out)
    assert (meeting.workers.leases_out, meeting.workers.least_busy(None)) == (1, (0.5, "node-1"))
    (told,) = meeting.told(link)
    assert told["lease"]["points"] == [{"x": 1.5}, {"x": 1.5}]

    link.put_report(IntermediateReport("there", 70, 1, 4, {"score": 1.0}))
    (report,) = meeting.heard()
    assert (report.trial, report.trainer, report.step) == (70, 3, 4)  # behind the master's two
    meeting.workers.answer(3, goes_on=False)
    assert meeting.told(link) == [{"verdict": False, "trainer": 1}]

    link.put_outcome(outcome(given_out))
    (heard,) = meeting.heard()
    assert (heard.session, heard.lease, heard.trainer, heard.worker) == ("here", 7, 3, "node-1")
    assert heard.points == given_out.points
    assert repr(heard.metrics) == "[{'score': nan}, {'score': 0.30000000000000004}]"
    link.put_outcome(outcome(given_out))
    assert meeting.heard() == []  # it has come back already

    meeting.workers.give("node-1", lease(8))
    link.leave("its time is over")
    (left,) = meeting.heard()
    assert (left.leases, left.is_loss) == ((8,), False)
    assert meeting.workers.here == {}
    (row,) = list_workers(meeting.ledger, 0.0)
    assert (row["worker"], row["trials"], row["state"]) == ("node-1", 4, "left: its time is over")


def test_one_that_is_silent_is_lost_until_it_is_heard_of_again(meeting: Meeting) -> None:
    link = meeting.link()
    meeting.heard()
    meeting.workers.give("node-1", lease(1))
    for _ in range(20):  # it beats: two seconds are no silence
        assert meeting.told(link, 2.5) is not None
        assert meeting.heard(0.5) == []
    (lost,) = meeting.heard(SILENCE_S + 1)
    assert (lost.leases, lost.is_loss) == ((1,), True)
    assert meeting.workers.least_busy(None) == (1.0, "")
    link.put_outcome(outcome(lease(1)))  # another one has it by now
    (back,) = meeting.heard()
    assert isinstance(back, WorkerChange)
    assert "takes part" in back.text
    meeting.workers.dismiss()
    assert meeting.told(link)[-1] == {"end": True}


def test_a_master_that_starts_again_has_a_term_of_its_own(meeting: Meeting) -> None:
    link, gone = meeting.link(), meeting.link("node-2")
    meeting.heard()
    meeting.told(link)
    meeting.workers.give("node-1", lease(1))
    gone.leave("its run is stopped")
    meeting.workers.close()
    meeting.workers = meeting.master()
    assert meeting.heard() == []  # that was said to the one before
    link.put_outcome(outcome(lease(1)))
    (came,) = meeting.heard()
    assert "node-1 takes part" in came.text
    assert meeting.workers.here == {"node-1": 2}
    assert [next(iter(one)) for one in meeting.told(link)] == ["format", "stops"]
    assert link.term == 2
    link.put_outcome(outcome(lease(1)))
    assert meeting.heard() == []


def test_what_is_damaged_loses_no_lease(meeting: Meeting, tmp_path: Path) -> None:
    link = meeting.link()
    meeting.heard()
    meeting.told(link)
    (tmp_path / "workers" / "a file").touch()
    (tmp_path / "workers" / "empty").mkdir()
    said = tmp_path / "workers" / "node-1" / "said.jsonl"
    for number, odd in enumerate(["no JSON", "[]", '{"outcome": {"lease": 3, "metrics": 5}}'], 1):
        meeting.workers.give("node-1", lease(number))
        with said.open("a") as file:
            file.write(odd.replace("}}", '}, "term": 1}') + "\n")
        lost, again = meeting.heard()  # it may have been the outcome: others get the lease
        assert (lost.leases, lost.is_loss) == ((number,), True)
        assert "takes part" in again.text
        link.put_outcome(outcome(lease(number)))
        assert meeting.heard() == []
    with said.open("a") as file:
        file.write('{"left"')
    assert meeting.heard() == []
    assert [row["worker"] for row in list_workers(meeting.ledger, 0.0)] == ["node-1"]


ODD_NUMBERS: list[Any] = [
    None, True, -1, 1.5, 10**400, -(10**400), float("inf"), float("nan"), 2**63, "", "1",
    "x" * 5000, "9" * 5000, [], {}, [[]], {"1": 1}, {"a": None}, "\ud800",
]  # fmt: skip


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each place in a message of JSON: a table or list, and the key there."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from places_in(value[key])


def messages_of_a_worker() -> list[dict[str, Any]]:
    done = replace(outcome(lease(1)), reasons={10: "why"}, stopped={11}, facts={"device": "cpu"})
    done = replace(done, reports={10: [(1, {"score": 1.0})]})
    report = IntermediateReport("there", 10, 1, 4, {"score": 1.0})
    back = {"back": [1], "leaving": False}
    identity = {"worker": "node-1", "format": 1, "trainers": 2, "silence_s": 30.0, "joined_s": 1.0}
    identity |= {"host": "h", "pid": 1, "job": "", "run_dir": ""}
    return [identity, outcome_message(done), report_message(report), back, {"left": "time"}]


@pytest.mark.parametrize("kind", range(5))
def test_no_number_of_a_worker_ends_its_master(meeting: Meeting, tmp_path: Path, kind: int) -> None:
    link = meeting.link()
    said = tmp_path / "workers" / "node-1" / "said.jsonl"
    text = json.dumps(messages_of_a_worker()[kind] | {"term": 1})
    for place in range(len(list(places_in(json.loads(text))))):
        for odd in ODD_NUMBERS if THOROUGH else ODD_NUMBERS[place % 3 :: 3]:
            link.give_back([])
            meeting.heard()
            meeting.workers.give("node-1", lease(1))
            message = json.loads(text)
            table, key = list(places_in(message))[place]
            table[key] = odd
            with said.open("a") as file:
                file.write(json.dumps(message) + "\n")
            for heard in meeting.heard():
                if isinstance(heard, Outcome):
                    assert sum(heard.seconds) < 1e301
                    assert all(10 <= trial < 12 for trial in (*heard.reports, *heard.reasons))
            if kind in (0, 4):  # as it was
                with said.open("a") as file:
                    file.write(json.dumps(messages_of_a_worker()[0]) + "\n")
    list_workers(meeting.ledger, 0.0)


def test_a_worker_that_cannot_be_is_not_listed(tmp_path: Path) -> None:
    said = tmp_path / "workers" / "node-1" / "said.jsonl"
    said.parent.mkdir(parents=True)
    identity = messages_of_a_worker()[0]
    said.write_text(json.dumps(identity) + "\n")
    assert len(list_workers(tmp_path / "trials.jsonl", 0.0)) == 1
    for name in identity:
        for odd in ODD_NUMBERS:
            said.write_text(json.dumps({**identity, name: odd}) + "\n")
            for row in list_workers(tmp_path / "trials.jsonl", 0.0):
                assert row["trainers"] < 2**63
    said.write_text(json.dumps({**identity, "silence_s": 10**400}) + "\n")
    assert list_workers(tmp_path / "trials.jsonl", 0.0) == []


def test_no_number_of_a_master_ends_its_workers_in_a_traceback(
    meeting: Meeting, tmp_path: Path
) -> None:
    order, given_out = order_message(ORDER, 1), lease_message(lease(1))
    for text in map(json.dumps, (order, given_out)):
        for place in range(len(list(places_in(json.loads(text))))):
            for odd in ODD_NUMBERS:
                message = json.loads(text)
                table, key = list(places_in(message))[place]
                table[key] = odd
                with contextlib.suppress(
                    ModuleFailed, LookupError, TypeError, ValueError, AttributeError
                ):
                    if "lease" in message:
                        lease_of(message, "there")
                    else:
                        order_of(message, "there", "a")


def test_metrics_of_a_worker_that_are_none_fail_their_trial(meeting: Meeting) -> None:
    link = meeting.link()
    meeting.heard()
    meeting.told(link)
    meeting.workers.give("node-1", lease(1, 4))
    wrong = outcome(lease(1, 4), 4)
    wrong.metrics[:] = [{"score": [0.5], "loss": 2}, 5, {"score": 10**400}, {"score": "nan"}]
    link.put_outcome(wrong)
    (heard,) = meeting.heard()
    start = heard.start
    assert heard.reasons == {
        start: "metric 'score' is a list, and no number",
        start + 1: "train returned 5, and not a dictionary of metrics",
        start + 2: "metric 'score' is too large a number",
    }
    assert heard.metrics[:3] == [{"loss": 2}, {}, {}]
    assert math.isnan(heard.metrics[3]["score"])


def test_a_worker_that_its_master_has_lost_finds_that_the_sweep_is_over(meeting: Meeting) -> None:
    link = meeting.link()
    meeting.heard()
    (lost,) = meeting.heard(SILENCE_S + 1)
    assert lost.is_loss
    assert not is_finished(meeting.ledger)
    meeting.workers.dismiss()
    assert meeting.told(link)[2:] == []  # after the order and its stops: nobody tells it
    assert is_finished(meeting.ledger)
    meeting.master().close()  # it goes on, with more trials
    assert not is_finished(meeting.ledger)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_each_trial_is_recorded_once_whoever_is_silent_or_leaves(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    draw = Random(seed)
    with Meeting(tmp_path_factory.mktemp("meeting")) as meeting:
        recorded = go_through(meeting, draw)
    assert recorded == Counter(range(12)), seed


def go_through(meeting: Meeting, draw: Random) -> Counter[int]:
    """Run a sweep of twelve trials with workers that come, are silent, die and leave."""
    queue, recorded = TrialQueue(12), Counter[int]()
    links: dict[str, MasterLink] = {}
    held: dict[str, dict[int, dict[str, Any]]] = {}

    def read_messages() -> None:
        for message in meeting.heard(0.6):
            if isinstance(message, WorkerChange):
                for number in message.leases:
                    queue.came_back(number, 0)
            elif queue.grant_of(message.lease) is not None:
                recorded.update(range(message.start, message.start + len(message.metrics)))
                queue.came_back(message.lease, len(message.metrics))

    for step in range(200):
        if len(queue.recorded) == 12:
            break
        if step > 100:  # at last all goes well
            links["last"] = links.get("last") or meeting.link("last", 1)
        elif len(links) < 3:
            links[f"w{step}"] = meeting.link(f"w{step}", 1)
        read_messages()
        busy, name = meeting.workers.least_busy(None)
        if busy < 1 and (grant := queue.take(draw.randint(1, 3))) is not None:
            points = [{"x": trial} for trial in range(grant.start, grant.stop)]
            wanted = Lease("here", grant.lease, grant.start, grant.stop, points)
            meeting.workers.give(name, wanted)
        for name in list(links):
            what = draw.random() if step <= 100 else 0.5
            if what < 0.1:
                continue  # it does not come to anything for a while
            for message in meeting.told(links[name], 0.1):
                if "lease" in message:
                    held.setdefault(name, {})[message["lease"]["number"]] = message["lease"]
            if what < 0.15:
                meeting.clock.now_s += SILENCE_S  # all are silent
            elif what < 0.2:
                links.pop(name).leave("it had enough")
            elif what < 0.25:
                del links[name]  # killed
            elif held.get(name):
                number, one = held[name].popitem()
                done = draw.randint(1, len(one["points"]))
                metrics = [{"score": 1.0}] * done
                columns = [1.0] * done
                links[name].put_outcome(
                    Outcome("there", number, one["start"], 0, [], metrics, columns, columns)
                )
    return recorded


# -- several masters -------------------------------------------------------------------------------


def test_one_of_many_takes_a_term(tmp_path: Path) -> None:
    ledger = tmp_path / "sweep" / "trials.jsonl"
    barrier, taken = threading.Barrier(8), list[int]()

    def take(number: int) -> None:
        terms = Terms(ledger, identity(tmp_path, f"m{number}"))
        for term in range(1, 21):
            barrier.wait(60)
            if terms.take(term):
                taken.append(term)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert taken == list(range(1, 21))
    terms = Terms(ledger, identity(tmp_path))
    assert terms.latest() == (20, "")
    assert terms.leader(20) == f"{tmp_path} on {identity(tmp_path).host}"
    assert terms.is_of_this_run(20)
    assert not Terms(ledger, identity(tmp_path / "other")).is_of_this_run(20)
    terms.end(20, "finished")
    assert terms.latest() == (20, "finished")


def test_a_file_system_without_links_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    terms = Terms(tmp_path / "trials.jsonl", identity(tmp_path))
    assert [terms.take(1), terms.take(1), terms.take(2)] == [True, False, True]


def test_a_former_leader_writes_nothing_any_more(tmp_path: Path) -> None:
    ledger = tmp_path / "trials.jsonl"
    first = Ledger(ledger, {"x": 1}, is_led=lambda: True)
    first.write([{"trial": 0}])
    assert Terms(ledger, identity(tmp_path)).take(2)
    with pytest.raises(LedgerReplaced, match="led by another master"):
        first.write([{"trial": 1}])
    second = Ledger(ledger, {"x": 1}, is_led=lambda: True)
    second.write([{"trial": 2}])
    assert [record["trial"] for record in records_of(ledger)] == [0, 2]
    first.close()
    second.close()


def test_a_master_that_is_replaced_before_it_begins_the_ledger_does_not_begin_it(
    tmp_path: Path,
) -> None:
    ledger = tmp_path / "trials.jsonl"
    slow = Terms(ledger, identity(tmp_path, "slow"))
    assert slow.take(1)
    assert Terms(ledger, identity(tmp_path, "other")).take(2)  # there is nothing to replace
    second = Ledger(ledger, {"x": 1}, is_led=lambda: True)
    leader = Leader(slow, 1, LedgerCopy(ledger, tmp_path / "own.jsonl"))
    with pytest.raises(LedgerReplaced, match="led by another master"):
        Ledger(ledger, {"x": 1}, is_led=leader.goes_on)
    second.write([{"trial": 0}])
    second.close()
    assert len(ledger.read_bytes().splitlines()) == 2


# -- whole sweeps ----------------------------------------------------------------------------------


def several(folder: Path, names: list[str]) -> dict[str, Sweep]:
    found = {}
    for name in names:
        (folder / name).mkdir()
        found[name] = Sweep(folder / name)
    return found


def together(*runs: Callable[[], object]) -> list[object]:
    """Run several at once; return what each gave, or raised."""
    given_back: list[object] = [None] * len(runs)

    def perform(place: int) -> None:
        try:
            given_back[place] = runs[place]()
        except Exception as error:
            given_back[place] = error

    threads = [threading.Thread(target=perform, args=(place,)) for place in range(len(runs))]
    # Python 3.11 before 3.11.8 counts the depth of syntax trees for all threads together, and
    # fails if a finalizer lets another one in (python/cpython#106905). Masters parse objectives.
    gc.disable()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        gc.enable()
    return given_back


def table(records: list[dict[str, Any]]) -> list[Any]:
    keys = ("trial", "state", "parameters", "metrics", "seed")
    return sorted([[record[key] for key in keys] for record in records], key=lambda row: row[0])


WANTED: dict[str, dict[str, Any]] = {
    "grid": GRID,
    "cross_entropy": {
        "space": {"x": {"from": 0.0, "to": 9.0}, "kind": "k"},
        "strategy": {"name": "cross_entropy", "elite": 4, "startup": 8},
        "deterministic": True,
        "lag": 8,
        "trials": 30,
        "seed": 3,
    },
    "halving": {
        "space": {"x": {"from": 0.0, "to": 9.0}, "kind": "k"},
        "strategy": {"name": "halving", "min_steps": 2},
        "deterministic": True,
        "lag": 8,
        "trials": 12,
        "seed": 3,
    },
}


@pytest.mark.parametrize("strategy", list(WANTED))
def test_runs_that_share_a_sweep_end_with_the_table_of_one(tmp_path: Path, strategy: str) -> None:
    wanted = WANTED[strategy]
    trials = wanted.get("trials", 30)
    runs = several(tmp_path, ["alone", "a", "b", "c"])
    alone = runs.pop("alone")
    train = "steps" if strategy == "halving" else "train"  # whose trials are stopped by reports
    best = alone.run(wanted, trainers=1, train=train).returned
    for run in runs.values():
        Participation(share=str(tmp_path / "shared")).save(run.run_dir)
    slowly = {"seconds": 0.03 if train == "steps" else 0.05}
    done = together(
        *(
            partial(run.run, wanted, trainers=1, train=train, options=slowly)
            for run in runs.values()
        )
    )
    tried: Counter[int] = Counter()
    workers = set()
    for one, ended in zip(runs.values(), done, strict=True):
        assert not isinstance(ended, Exception), ended
        assert (ended.returned["trial"], ended.returned["score"]) == (best["trial"], best["score"])  # type: ignore[attr-defined]
        assert table(one.records) == table(alone.records)
        assert sorted(int(row["trial"]) for row in one.rows) == list(range(trials))
        workers |= {record.get("worker", "") for record in one.records}
        tried += one.tried if (one.folder / "tried.txt").exists() else Counter()
    assert tried == (Counter() if strategy == "halving" else Counter(range(trials)))
    assert len(workers) >= 2  # the one that leads, and another


def test_a_leader_that_ends_is_followed_by_another(tmp_path: Path) -> None:
    runs = several(tmp_path, ["alone", "a", "b"])
    runs["alone"].run(GRID, trainers=1)
    shared = tmp_path / "shared"
    for name in ("a", "b"):
        Participation(share=str(shared)).save(runs[name].run_dir)

    def second() -> object:
        wait_until((shared / "sweeps" / "group.master" / "trials.jsonl").exists)
        return runs["b"].run(GRID, trainers=1, options={"seconds": 0.05})

    def first() -> object:
        given_options = {"seconds": 0.05, "stops": str(runs["b"].folder / "tried.txt")}
        return runs["a"].run(GRID, trainers=1, train="stops", options=given_options)

    stopped, ended = together(first, second)
    assert isinstance(stopped, RunStopped), stopped
    assert not isinstance(ended, Exception), ended
    assert table(runs["b"].records) == table(runs["alone"].records)
    assert sorted(int(row["trial"]) for row in runs["b"].rows) == list(range(30))
    assert sorted(
        entry.name for entry in (shared / "sweeps" / "group.master" / "terms").iterdir()
    ) == ["000001", "000001.ended", "000002", "000002.ended"]


def test_a_leader_that_was_only_slow_finds_out_that_another_has_led(tmp_path: Path) -> None:
    runs = several(tmp_path, ["alone", "slow"])
    runs["alone"].run(GRID, trainers=1)
    shared = tmp_path / "shared"
    Participation(share=str(shared)).save(runs["slow"].run_dir)
    ledger = shared / "sweeps" / "group.master" / "trials.jsonl"
    other = Terms(ledger, identity(tmp_path, "other"))

    def take_over() -> bool:
        wait_until(lambda: ledger.exists() and len(list(records_of(ledger))) > 5)
        is_taken = other.take(2)
        other.end(2, "stopped")
        return is_taken

    ended, is_taken = together(
        lambda: runs["slow"].run(GRID, trainers=1, options={"seconds": 0.02}), take_over
    )
    assert is_taken is True
    assert isinstance(ended, ModuleRun), ended
    assert "another master has gone on with the sweep: it leads now" in ended.warnings
    assert other.latest() == (3, "finished")
    assert table(runs["slow"].records) == table(runs["alone"].records)
    odd = several(tmp_path, ["odd"])["odd"]
    Participation(share=str(shared)).save(odd.run_dir)
    with pytest.raises(LedgerError, match="is of another sweep: see seed"):
        odd.run({**GRID, "seed": 6})


def test_who_joins_a_sweep_that_has_just_ended_leaves_at_once(tmp_path: Path) -> None:
    runs = several(tmp_path, ["here", "late", "later"])
    runs["here"].run(GRID, trainers=1)
    for name in runs.keys() - {"here"}:  # neither ever has an order
        Participation(join=str(runs["here"].ledger), silence_s=0.5).save(runs[name].run_dir)
        returned = runs[name].run(GRID, trainers=1).returned
        assert returned == {"trials": 0, "left": "the sweep is over"}
        # As by a run whose disk was full: that the run has finished says the same.
        runs["here"].ledger.with_name("finished").unlink(missing_ok=True)
        with JournalWriter(runs["here"].run_dir / "journal.jsonl") as journal:
            journal.write(record("RunStarted", workflow="w", ranks=4, groups=["group"]))
            journal.write(record("RunEnded", exit_code=0))


def test_a_run_joins_a_sweep_and_leaves(tmp_path: Path) -> None:
    runs = several(tmp_path, ["alone", "here", "there", "soon"])
    runs["alone"].run(GRID, trainers=1)

    def join(name: str, **said: Any) -> object:
        ledger = runs["here"].ledger
        wait_until(ledger.exists)
        Participation(join=str(ledger), **said).save(runs[name].run_dir)
        return runs[name].run(GRID, trainers=1, options={"seconds": 0.3}).returned

    here, there, soon = together(  # three seconds at least
        lambda: runs["here"].run(GRID, trainers=1, options={"seconds": 0.3}),
        lambda: join("there"),
        lambda: join("soon", leave_after_s=2.0),
    )
    assert not isinstance(here, Exception), here
    assert isinstance(there, dict)
    assert isinstance(soon, dict)
    assert there["left"] == "the sweep is over"
    assert soon["left"] == "its time is over"
    records = runs["here"].records
    assert table(records) == table(runs["alone"].records)
    by_worker = Counter(record.get("worker", "") for record in records)
    assert sorted(by_worker.values()) == sorted(
        [there["trials"], soon["trials"], 30 - there["trials"] - soon["trials"]]
    )
    assert there["trials"] > 0
    assert soon["trials"] > 0
    rows = list_workers(runs["here"].ledger, 0.0)
    assert {row["trials"] for row in rows} == {there["trials"], soon["trials"]}


@pytest.mark.parametrize("place", ["", "a\0b", "/half/\ud800", 3, ["a"], {}])
def test_a_place_that_no_file_can_have_is_a_damaged_part(place: object, tmp_path: Path) -> None:
    for field in ("share", "join"):
        file = tmp_path / field / "sweeps" / "takes-part.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({field: place}))
        with pytest.raises(LedgerError, match="nobody knows in which sweep"):
            Participation.of_run(tmp_path / field)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000], ids=["empty", "list", "nested"])
def test_what_is_no_table_is_a_damaged_part(text: str, tmp_path: Path) -> None:
    file = tmp_path / "sweeps" / "takes-part.json"
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(LedgerError, match="nobody knows in which sweep"):
        Participation.of_run(tmp_path)
