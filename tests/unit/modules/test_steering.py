"""Steering a sweep while it runs: what is asked and answered, and what a resumed sweep knows."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import case_count, wait_until
from unit.modules.sweeping import GRID, Sweep

from diel import whole_lines
from diel.errors import LaunchError
from diel.loading import sweeps
from diel.run.directory import RunDirectory
from modules.options import SweepOptions
from modules.reporter import SweepReporter
from modules.search import Search
from modules.space import Space
from modules.strategies import WAIT, CrossEntropy, make_strategy
from modules.sweep.leases import TrialQueue
from modules.sweep.ledger import decisions_of, encode, trials_of
from modules.sweep.steering import (
    Request,
    RequestReader,
    Steering,
    SteeringError,
    answers_to,
    ask,
    is_paused,
    requests_for,
)
from modules.trial import trial_seed

SPACE = {"x": {"from": 0, "to": 29, "step": 1}, "kind": ["k", "l"]}


def heading(folder: Path, **about: Any) -> Path:
    """Return a ledger that has begun."""
    ledger = folder / "sweeps" / "g.master" / "trials.jsonl"
    ledger.parent.mkdir(parents=True)
    ledger.write_text(json.dumps({"format": 1, "sweep": {"space": SPACE, **about}}) + "\n")
    return ledger


# -- requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"kind": "enqueue", "parameters": {"x": 30, "kind": "k"}}, "x: 30"),
        ({"kind": "enqueue", "parameters": {"x": 3}}, "kind: is missing"),
        ({"kind": "enqueue", "parameters": {"x": 30}}, "x: 30 is none of .*; kind: is missing$"),
        (
            {"kind": "enqueue", "parameters": {"x": 3, "kind": "k", "z": 1}},
            "z: is no parameter, there are x, kind",
        ),
        ({"kind": "enqueue", "parameters": {"x": [1], "kind": {}}}, "no point of the space"),
        ({"kind": "enqueue"}, "table of parameters"),
        ({"kind": "stop", "number": -1}, "-1 is not the number of a trial"),
        ({"kind": "stop", "number": True}, "True is not"),
        ({"kind": "trials", "number": 0}, "0 is not a number of trials"),
        ({"kind": "pause", "number": 3}, "pause has no number"),
        ({"kind": "pause", "time_s": 3.0}, "no time in seconds, for a request of the kind pause"),
        ({"kind": "time"}, "None is no time in seconds"),
        ({"kind": "time", "time_s": True}, "True is no time"),
        ({"kind": "time", "time_s": 0}, "longer than 0 s"),
        ({"kind": "time", "time_s": float("nan")}, "longer than 0 s"),
        ({"kind": "explode"}, "no request"),
    ],
)
def test_what_makes_no_sense_is_said_at_once_and_nothing_is_asked(
    tmp_path: Path, asked: dict[str, Any], words: str
) -> None:
    ledger = heading(tmp_path)
    with pytest.raises(SteeringError, match=words):
        requests_for(ledger, [{"kind": "pause"}, asked])
    with pytest.raises(SteeringError, match="no sweep that has begun"):
        SweepReporter().steer_sweep(tmp_path / "other", [asked], "")
    with pytest.raises(SteeringError, match=r"there are g\.master"):
        SweepReporter().steer_sweep(tmp_path, [asked], "h.master")
    assert not ledger.with_name("requests.jsonl").exists()


EACH_KIND = {
    "steps": {"from": 0, "to": 29, "step": 1},
    "log_steps": {"from": 1e-3, "to": 1.0, "log_steps": 4},
    "log_integers": {"from": 1, "to": 100, "log_steps": 3},
    "range": {"from": 0.0, "to": 1.0},
    "log_range": {"from": 1e-3, "to": 1.0, "scale": "log"},
    "integers": {"from": 1, "to": 1000, "scale": "log"},
    "choices": ["k", 5],
    "inner": {"choices": [1, 2], "if": {"steps": {"at_least": 3}}},
}


def test_no_number_of_a_request_ends_the_sweep(tmp_path: Path) -> None:
    ledger = heading(tmp_path, space=EACH_KIND)
    file, reader = ledger.with_name("requests.jsonl"), RequestReader(ledger)
    space = Space.parse(EACH_KIND)
    point = {"steps": 2, "log_steps": 1.0, "log_integers": 10, "range": 0.5, "log_range": 0.5,
             "integers": 7, "choices": "k"}  # fmt: skip
    assert list(space.problems(point)) == []
    odd = ["1e999", "-1e999", "1" + "0" * 400, "-1" + "0" * 400, "1e301", "[1]", "{}",
           "null", "true", '"x"', '"\\ud800"', "[" * 90 + "]" * 90]  # fmt: skip
    asked = 0
    for name in EACH_KIND:
        for text in odd:
            fields = {"version": 1, "id": f"{name} {text[:9]}", "kind": "enqueue"}
            line = json.dumps({**fields, "parameters": {**point, name: "ODD"}})
            with file.open("a") as requests:
                requests.write(line.replace('"ODD"', text) + "\n")
            found = reader.new_requests()
            asked += len(found)
            for request in found:
                assert request.parameters is not None
                assert list(space.problems(request.parameters)) != [], (name, text)
                encode(request.as_dict())
    assert asked == len(EACH_KIND) * len(odd)
    for number in ("1" + "0" * 400, "1e999", "2.0", "true", "NaN", "-1"):
        with file.open("a") as requests:
            requests.write(f'{{"version": 1, "id": "a", "kind": "trials", "number": {number}}}\n')
    assert reader.new_requests() == []


def test_many_ask_at_once_and_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    ledger = heading(tmp_path)
    file = ledger.with_name("requests.jsonl")
    file.write_bytes(b'[]\n{"version": 1}\nnull\n\xff\xfe\n{"version": 1, "id": "a", "ki')
    reader = RequestReader(ledger)
    assert reader.has_more()
    assert reader.new_requests() == []
    assert not reader.has_more()  # half a line wakes nobody again

    def asks(trial: int) -> None:
        ask(ledger, requests_for(ledger, [{"kind": "stop", "number": trial}] * 5))

    threads = [threading.Thread(target=asks, args=(trial,)) for trial in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = reader.new_requests()
    assert Counter(one.number for one in found) == dict.fromkeys(range(8), 5)
    assert len({one.id for one in found}) == 40
    assert reader.new_requests() == []
    assert all(answer.accepted is None for answer in answers_to(ledger, found, 0.0))


def test_links_are_not_followed(tmp_path: Path) -> None:
    ledger = heading(tmp_path)
    (tmp_path / "secret").write_text("x")
    ledger.with_name("requests.jsonl").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic"):
        ask(ledger, requests_for(ledger, [{"kind": "pause"}]))
    reader = RequestReader(ledger)
    assert not reader.has_more()  # else a master would look again at once, and for ever
    assert reader.new_requests() == []
    assert (tmp_path / "secret").read_text() == "x"


def test_who_waits_for_an_answer_reads_each_line_of_the_ledger_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = heading(tmp_path)
    (request,) = requests_for(ledger, [{"kind": "pause"}])
    read: list[bytes] = []

    def counted(path: Path, start: int = 0) -> Any:
        for line in whole_lines(path, start):
            read.append(line)
            yield line

    def sleeps(seconds: float) -> None:
        line = {"request": request.as_dict(), "accepted": True, "answer": "yes"}
        with ledger.open("a") as file:
            file.write(json.dumps(line) + "\n")

    monkeypatch.setattr("modules.sweep.steering.whole_lines", counted)
    monkeypatch.setattr("modules.sweep.steering.time.sleep", sleeps)
    (answer,) = answers_to(ledger, [request], 10.0)
    assert answer.accepted is True
    assert len(read) == 2


@pytest.mark.parametrize("kind", ["pause", "enqueue", "trials", "time"])
def test_a_sweep_at_its_end_refuses_what_it_would_not_do(kind: str) -> None:
    search = search_for()
    steering = Steering(search, TrialQueue(search.size))
    point = {"x": 1, "kind": "k"} if kind == "enqueue" else None
    request = Request("a", kind, point, 3 if kind == "trials" else None)  # type: ignore[arg-type]
    decision = steering.decide(request, "the sweep is at its end")
    assert decision["accepted"] is False
    assert "at its end" in decision["answer"]


def test_time_is_for_trials_that_are_left_and_can_be_ended() -> None:
    search = search_for("random", trials=2)
    queue = TrialQueue(search.size)
    steering = Steering(search, queue)
    request = Request("a", "time", time_s=90.0)
    decision = steering.decide(request)
    assert decision["answer"] == "the sweep ends in 1 min 30 s"
    steering.apply(json.loads(json.dumps(decision)))
    assert search.left_s(60.0) == 30.0
    steering.takes_time = False
    assert "end the run, ask again" in steering.decide(request)["answer"]
    for trial in range(2):
        queue.recorded.add(trial)
    refused = steering.decide(request)
    assert not refused["accepted"]
    assert "ask for more trials" in refused["answer"]


@pytest.mark.parametrize(
    ("states", "ended", "kind", "accepted", "words"),
    [
        (["running"], True, "pause", None, "come to its end"),
        (["running", "finished"], False, "trials", None, "kept: diel run --resume"),
        (["running", "finished"], False, "pause", False, "has finished meanwhile"),
        (["running", "running"], False, "pause", None, "not answered yet"),
    ],
)
def test_what_nobody_is_left_to_answer_is_kept_or_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    states: list[str],
    ended: bool,
    kind: str,
    accepted: bool | None,
    words: str,
) -> None:
    heading(tmp_path)
    found = iter(states)
    there = "diel.loading.sweeps"
    monkeypatch.setattr(f"{there}.summarize", lambda *_: SimpleNamespace(state=next(found)))
    monkeypatch.setattr(f"{there}.has_ended", lambda *_: ended)
    monkeypatch.setattr(f"{there}.is_finished_at_checkpoint", lambda *_: False)
    directory = RunDirectory(tmp_path)
    asked = [{"kind": kind, **({"number": 3} if kind == "trials" else {})}]
    if ended:
        with pytest.raises(LaunchError, match=words):
            sweeps.steer_sweep(directory, asked, wait_s=0.0)
        return
    (answer,) = sweeps.steer_sweep(directory, asked, wait_s=0.0)
    assert answer["accepted"] is accepted
    assert words in answer["answer"]
    assert directory.extension_requested() == (kind == "trials")


# -- decisions ------------------------------------------------------------------------------------


def search_for(strategy: str = "grid", **more: Any) -> Search:
    return Search(SweepOptions(space=SPACE, strategy=strategy, **more))  # type: ignore[arg-type]


class Model:
    """A master of pure parts, which may be killed and started again from its ledger."""

    def __init__(self, strategy: str, **more: Any) -> None:
        self.given = (strategy, more)
        self.ledger: list[dict[str, Any]] = []
        self.requests: list[Request] = []
        self.start()

    def start(self) -> None:
        strategy, more = self.given
        self.search = search_for(strategy, **more)
        self.queue = TrialQueue(self.search.size)
        self.steering = Steering(self.search, self.queue)
        self.asked: dict[int, Any] = {}
        self.next = 0
        for line in self.ledger:
            if "request" in line:
                self.steering.apply(line)
        for line in self.ledger:
            if "state" in line:
                assert self.queue.recorded.add(line["trial"])
                self.search.tell(line["trial"], line["parameters"], line["metrics"])

    def steer(self) -> None:
        for request in self.requests:
            if not self.steering.is_known(request):
                decision = json.loads(json.dumps(self.steering.decide(request)))
                self.ledger.append(decision)
                self.steering.apply(decision)
        for trial in sorted(self.steering.stopped):
            if trial not in self.queue.recorded and not self.queue.is_trial_out(trial):
                point = self.steering.points.get(trial) or self.search.ask(trial)
                self.queue.drop(trial)
                self.record(trial, point, "stopped", None)

    def record(self, trial: int, point: Any, state: str, metrics: Any) -> None:
        line = {"trial": trial, "state": state, "parameters": point, "metrics": metrics}
        self.ledger.append(line)
        self.search.tell(trial, point, metrics)

    def work(self, count: int) -> bool:
        """Give out some trials and record them; return whether there were any."""
        grant = None if self.steering.is_paused else self.queue.take(count)
        if grant is None:
            return False
        for trial in range(grant.start, grant.stop):
            point = self.steering.points.get(trial) or self.search.ask(trial)
            assert isinstance(point, dict)
            self.record(trial, point, "finished", {"accuracy": point["x"] / 30})
        self.queue.came_back(grant.lease, grant.stop - grant.start)
        return True


REQUESTS = st.one_of(
    st.builds(
        lambda x: {"kind": "enqueue", "parameters": {"x": x, "kind": "k"}}, st.integers(-2, 31)
    ),
    st.sampled_from([{"kind": "pause"}, {"kind": "resume"}]),
    st.builds(lambda number: {"kind": "stop", "number": number}, st.integers(0, 45)),
    st.builds(lambda number: {"kind": "trials", "number": number}, st.integers(1, 70)),
)


@settings(max_examples=case_count(60), deadline=None)
@given(
    st.sampled_from([("grid", {}), ("random", {"trials": 12}), ("grid", {"trials": 20})]),
    st.lists(st.one_of(REQUESTS, st.integers(1, 6), st.just("crash")), max_size=25),
)
def test_nothing_is_lost_and_nothing_is_done_twice(given: Any, steps: list[Any]) -> None:
    model = Model(given[0], **given[1])
    for number, step in enumerate(steps):
        if step == "crash":
            model.start()
        elif isinstance(step, int):
            model.work(step)
        else:
            model.requests.append(Request.parse({**step, "version": 1, "id": f"r{number}"}))
            model.steer()
    model.requests.append(Request("end", "resume"))
    model.steer()
    while model.work(3):
        pass
    told = [line for line in model.ledger if "request" in line]
    assert [one["request"]["id"] for one in told] == [request.id for request in model.requests]
    enqueued = {one["trial"]: one["request"]["parameters"] for one in told if "trial" in one}
    trials = {line["trial"]: line for line in model.ledger if "state" in line}
    assert len(trials) == sum("state" in line for line in model.ledger)  # none twice
    for trial, point in enqueued.items():
        assert trials[trial]["parameters"] == point
    # The strategy's trials are what they are without anybody who asks, in their order.
    alone = search_for(given[0], **{**given[1], "trials": None} if given[0] == "grid" else given[1])
    alone.limit(None)
    own = [trial for trial in sorted(trials) if trial not in enqueued]
    wanted = model.search.size
    assert wanted is not None
    assert len(own) >= wanted
    for place, trial in enumerate(sorted(own)):
        if trial == place:  # those behind an enqueued one are the strategy's next
            assert trials[trial]["parameters"] == alone.ask(place)
    assert len({json.dumps(trials[trial]["parameters"]) for trial in own}) == len(own) or (
        given[0] == "random"
    )


def test_a_deterministic_strategy_counts_its_own_trials_alone() -> None:
    plain = search_for("cross_entropy", trials=40, deterministic=True, lag=2)
    steered = search_for("cross_entropy", trials=40, deterministic=True, lag=2)
    number = 0
    for trial in range(30):
        if trial == 10:
            steered.enqueue(number)
            steered.tell(number, {"x": 29, "kind": "l"}, {"accuracy": 1.0})
            number += 1
        one, other = plain.ask(trial), steered.ask(number)
        assert one is not WAIT
        assert one == other
        assert isinstance(one, dict)
        plain.tell(trial, one, {"accuracy": one["x"] / 30})
        steered.tell(number, one, {"accuracy": one["x"] / 30})
        number += 1
    assert steered.best is not None
    assert steered.best[0] == 10


@pytest.mark.parametrize("name", ["cross_entropy", "tpe", "optuna:tpe", "halving"])
def test_strategies_that_learn_are_told_of_points_that_they_have_not_asked_for(name: str) -> None:
    if name.startswith("optuna"):
        pytest.importorskip("optuna")
    search = search_for(name, trials=50)
    for trial in range(3):
        point = search.ask(trial)
        assert isinstance(point, dict)
        search.tell(trial, point, {"accuracy": 0.5})
    search.enqueue(50)
    search.tell(50, {"x": 7, "kind": "k"}, {"accuracy": 0.9})
    assert isinstance(search.ask(3), dict)
    if name == "cross_entropy":
        strategy = make_strategy({"name": name, "startup": 1, "elite": 2}, Space.parse(SPACE), 0)
        assert isinstance(strategy, CrossEntropy)
        for score in (0.9, 0.8):
            strategy.add({"x": 7, "kind": "k"}, score)
        drawn = Counter(strategy.ask(trial)["x"] for trial in range(200))
        assert drawn[7] > 50


# -- a sweep that runs ----------------------------------------------------------------------------


def steered_sweep(sweep: Sweep, wanted: dict[str, Any], steps: Any, **more: Any) -> Any:
    """Run a sweep, and `steps` beside it once its ledger is there."""
    problems: list[BaseException] = []

    def beside() -> None:
        try:
            wait_until(lambda: sweep.ledger.exists() and sweep.ledger.stat().st_size > 0)
            steps()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=beside)
    thread.start()
    done = sweep.run(wanted, **more)
    thread.join()
    assert problems == []
    return done


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.sweep.master_loop._LOOK_FOR_REQUESTS_EVERY_S", 0.02)
    monkeypatch.setattr("modules.sweep.trainer_loop._LOOK_FOR_STOPS_EVERY_S", 0.02)


def asks(sweep: Sweep, *asked: dict[str, Any], wait_s: float = 10.0) -> list[dict[str, Any]]:
    _, send = SweepReporter().steer_sweep(sweep.run_dir, asked, "")
    return send(wait_s)


def test_a_running_sweep_is_paused_enqueued_stopped_and_made_longer(sweep: Sweep) -> None:
    (sweep.folder / "mine.py").write_text(
        (sweep.folder / "mine.py").read_text() + "\n\ndef held(parameters, report):\n"
        "    for _ in range(2000):\n"
        "        if (report.folder / 'go').exists():\n"
        "            return train(parameters, report)\n"
        "        time.sleep(0.01)\n"
    )

    def steps() -> None:
        (pause,) = asks(sweep, {"kind": "pause"})
        assert pause["accepted"] is True
        assert is_paused(sweep.ledger)
        (sweep.folder / "go").touch()
        answers = asks(
            sweep,
            {"kind": "enqueue", "parameters": {"x": 7.5}},
            {"kind": "stop", "number": 11},
            {"kind": "stop", "number": 11},
            {"kind": "stop", "number": 40},
            {"kind": "trials", "number": 14},
            {"kind": "resume"},
        )
        assert [answer["accepted"] for answer in answers] == [True, True, False, False, True, True]
        assert (answers[0]["trial"], answers[2]["answer"]) == (12, "trial 11 is to stop already")

    wanted = {"space": {"x": {"from": 0.0, "to": 9.0}}, "strategy": "random", "trials": 12,
              "seed": 3}  # fmt: skip
    done = steered_sweep(sweep, wanted, steps, train="held")
    records = {one["trial"]: one for one in sweep.records}
    assert records.keys() == set(range(15))
    assert (records[12]["parameters"], records[12]["seed"]) == ({"x": 7.5}, trial_seed(3, 12))
    assert (records[11]["state"], records[11]["metrics"]) == ("stopped", {})
    alone = Search(SweepOptions(**wanted))  # type: ignore[arg-type]
    for trial in range(12):
        assert records[trial]["parameters"] == alone.ask(trial)
    assert len(sweep.rows) == 15
    assert sweep.tried == Counter({*range(15)} - {11})
    declared = [one for one in done.records if one["event"] == "ResultsDeclared"]
    assert (declared[0]["expected"], declared[-1]["expected"]) == (12, 15)
    # Resumed, it has nothing to do, and knows what was asked.
    assert len(list(decisions_of(sweep.ledger))) == 7
    again = sweep.run(wanted)
    assert len(sweep.records) == 15
    assert again.returned["trial"] == done.returned["trial"]


@pytest.mark.parametrize("isolated", [False, True])
def test_a_trial_that_runs_ends_at_its_next_report(sweep: Sweep, isolated: bool) -> None:
    with (sweep.folder / "mine.py").open("a") as file:
        file.write(
            "\n\ndef slow(parameters, report):\n"
            "    (report.folder / 'begun').touch()\n"
            "    for step in range(1, 400):\n"
            "        time.sleep(0.02 if parameters['x'] == 0 else 0)\n"
            "        if not report(step, score=1.0):\n"
            "            break\n"
            "    return {'score': parameters['x'], 'steps': step}\n"
        )

    def steps() -> None:
        wait_until((sweep.folder / "begun").exists)
        (answer,) = asks(sweep, {"kind": "stop", "number": 0})
        assert answer["answer"] == "trial 0 ends when it reports next"

    steered_sweep(
        sweep, {"space": {"x": [0, 1]}}, steps, train="slow", trainers=1, isolated=isolated
    )
    records = {one["trial"]: one for one in sweep.records}
    assert [records[trial]["state"] for trial in (0, 1)] == ["stopped", "finished"]
    assert records[0]["metrics"]["steps"] < 300
    assert records[1]["metrics"]["steps"] == 399


def test_a_session_that_begins_again_does_what_was_asked_before(sweep: Sweep) -> None:
    sweep.run(GRID)
    whole = sorted((one["trial"], one["parameters"]["x"]) for one in sweep.records)
    sweep.cut_ledger(10)
    kept = {one["trial"] for one in trials_of(sweep.ledger)}
    answers = asks(
        sweep,
        {"kind": "enqueue", "parameters": {"x": 4, "kind": "k"}},
        {"kind": "stop", "number": 29},
        {"kind": "trials", "number": 31},
        wait_s=0.0,
    )
    assert [answer["accepted"] for answer in answers] == [None] * 3
    sweep.run(GRID)
    told = list(decisions_of(sweep.ledger))
    stopped_late = 29 in kept
    assert [one["accepted"] for one in told] == [True, not stopped_late, False]
    assert told[2]["answer"] == "the strategy has 30 trials, and no more"
    records = {one["trial"]: one for one in sweep.records}
    assert len(sweep.records) == len(records) == 31
    assert sorted((trial, one["parameters"]["x"]) for trial, one in records.items()) == [
        *whole,
        (30, 4),
    ]
