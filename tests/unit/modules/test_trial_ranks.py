"""How many ranks a trial has, as a function of its point, and sweeps of such trials."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from unit.modules.sweeping import Sweep

from diel.testing import Module, run_modules
from modules import master, trainer
from modules.options import SweepOptions
from modules.search import Search
from modules.sweep.dispatcher import Dispatcher
from modules.sweep.leases import TrialQueue
from modules.sweep.ledger import records_of
from modules.sweep.messages import Lease, Tags
from modules.sweep.rank_queues import RankQueues, Ranks
from modules.sweep.steering import Steering
from modules.trial_ranks import TrialRanks, TrialRanksError


@pytest.mark.parametrize(
    ("text", "point", "ranks"),
    [
        ("4 if hidden >= 1024 else 1", {"hidden": [1024]}, 4),
        ("4 if hidden >= 1024 else 1", {"hidden": [512, 256]}, 1),
        ("4 if hidden >= 1024 else 1", {"hidden": []}, 1),
        ("width / 256", {"width": 64}, 1),
        ("width / 256", {"width": 257}, 2),
        ("width / 256", {"width": 10**6}, 4),
        ("-width", {"width": 3}, 1),
        ("1e308 * width", {"width": 1e308}, 4),
        ("-1e308 * width", {"width": 1e308}, 1),
        ("1 + 2 * deep", {"deep": True}, 3),
        ("depth", {"kind": "flat"}, 1),  # a parameter that the point does not have
        ("2", {}, 2),
    ],
)
def test_an_expression_of_parameters(text: str, point: dict[str, Any], ranks: int) -> None:
    assert TrialRanks.parse(text, 4)(point) == ranks


def test_a_function_of_the_point(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def ranks(point):\n    return {'large': 3, 'odd': 'many'}.get(point['kind'], 1)\n"
    )
    found = TrialRanks.parse("./mine.py:ranks", 4, tmp_path)
    assert [found({"kind": kind}) for kind in ("small", "large")] == [1, 3]
    with pytest.raises(TrialRanksError, match="it returned 'many', which is text"):
        found({"kind": "odd"})
    with pytest.raises(TrialRanksError, match="KeyError: 'kind'"):
        found({})


def test_what_is_no_number_of_ranks() -> None:
    with pytest.raises(TrialRanksError, match="ZeroDivisionError"):
        TrialRanks.parse("1 / width", 4)({"width": 0})
    with pytest.raises(TrialRanksError, match="NaN"):
        TrialRanks.parse("width", 4)({"width": float("nan")})
    with pytest.raises(TrialRanksError, match="parameter kind = 'a'") as error:
        TrialRanks.parse("kind", 4)({"kind": "a"})
    assert "a function of yours" in error.value.remedy


def checked(processes: int, ranks: str, space: dict[str, Any] | None = None, **more: Any) -> None:
    """Check a trainer's options, and those of a master whose trainer it is."""
    options = {"dataset": "digits", "training": {"parallel": "data"}, "ranks": ranks, **more}
    module = SimpleNamespace(name="trainer", processes=processes, gpus=0, options=options)
    context = {"folder": Path(), "module": module, "modules": {"trainer": module}}
    trainer.Options.model_validate(options, context=context)
    location = SimpleNamespace(file=Path(trainer.__file__), function="run")
    master.Options.model_validate(
        {"space": space or {"hidden": [[32], [64]]}},
        context={**context, "locations": {"trainer": location}, "options_of": {}},
    )


@pytest.mark.parametrize(
    ("processes", "options", "place", "words", "remedy"),
    [
        (1, {"ranks": "2", "training": {}}, "ranks", "has one process", "processes = 4"),
        (4, {"ranks": "import os"}, "ranks", "is no expression", ""),
        (4, {"ranks": "open('x')"}, "ranks", "open(...) is not allowed", ""),
        (4, {"ranks": "./nowhere.py:f"}, "ranks", "nowhere.py", ""),
        (4, {"ranks": "hiden"}, "space", "no parameter 'hiden'", 'did you mean "hidden"?'),
        (
            4,
            {"ranks": "2", "training": {"parallel": {"pipeline": 4}}},
            "ranks",
            "a trial of 2 ranks",
            'training.parallel = "data"',
        ),
        (
            2,
            {"ranks": "optimizer", "space": {"optimizer": ["sgd", "adam"]}},
            "optimizer",
            "parameter optimizer = 'sgd'",
            "a function of yours",
        ),
        (2, {"ranks": "2", "space": {"ranks": [1, 2]}}, "ranks", "a column", "another name"),
    ],
)
def test_what_does_not_fit_is_found_before_the_run(
    processes: int, options: dict[str, Any], place: str, words: str, remedy: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        checked(processes, **options)
    found = [each for each in caught.value.errors() if place in each["loc"]]
    assert any(words in each["msg"] for each in found), caught.value
    assert any(remedy in each.get("ctx", {}).get("remedy", "") for each in found)


def test_what_fits() -> None:
    checked(2, "2 if hidden > 40 else 1")
    checked(4, "batch_size / 64", {"batch_size": {"from": 1, "to": 99, "step": 1}, "epochs": 1})
    checked(4, "4", training={"parallel": "local_sgd"})


# -- the master's side ----------------------------------------------------------------------------


class Tuples:
    """The tuples of each tag, in their order."""

    def __init__(self) -> None:
        self.of: dict[Any, list[Any]] = {}

    def tput(self, tag: Any, value: Any) -> None:
        self.of.setdefault(tag, []).append(value)

    def collect(self, tag: Any) -> list[tuple[Any, Any]]:
        return [(tag, value) for value in self.of.pop(tag, [])]


class Dispatching:
    """A dispatcher for copies of four ranks, and what each rank has to do."""

    def __init__(self, sizes: list[int], copies: int = 1) -> None:
        different = [size - place / 100 for place, size in enumerate(sizes)]  # rounded up alike
        options = SweepOptions.model_validate(
            {"space": {"size": different}, "objective": "score", "maximise": True}
        )
        self.tuples, self.tags = Tuples(), Tags("g", "trainer")
        self.queue, search = TrialQueue(len(sizes)), Search(options)
        self.queues = RankQueues(copies, 4)
        for copy in range(copies):
            self.queues.begin(copy, f"s{copy}")
        workers = SimpleNamespace(here={}, leases_out=0)
        self.dispatcher = Dispatcher(
            *(SimpleNamespace(tuples=self.tuples), self.tags, 4 * copies, "now", search),
            *(self.queue, Steering(search, self.queue), workers, None),
            record=lambda record: None,
            reason_to_end=lambda: "",
            ranks_of=TrialRanks.parse("size", 4),
            queues=self.queues,
        )
        self.dispatcher.give_out()

    def orders(self, copy: int = 0) -> list[list[int]]:
        """The first trial of each order, for each rank."""
        tags = [self.tags.lease_of(copy, rank) for rank in range(4)]
        return [[lease.start for lease in self.tuples.of.get(tag, [])] for tag in tags]

    def take(self, rank: int) -> Lease:
        """Let a rank take its next order."""
        order: Lease = self.tuples.of[self.tags.lease_of(0, rank)].pop(0)
        return order

    def end(self, lease: Lease) -> None:
        """Let a lease be done."""
        self.dispatcher.pace_of(lease.number).observe(1, 10.0)
        self.dispatcher.came_back(lease.number)
        self.queue.came_back(lease.number, lease.stop - lease.start)
        self.dispatcher.give_out()


def test_a_large_trial_is_held_and_none_passes_it() -> None:
    found = Dispatching([1, 4, 4, 1, 1])
    assert found.orders() == [[0, 1], [1], [1], [1]]
    first = found.take(0)
    found.end(first)
    assert found.orders() == [[1], [1], [1], [1]]  # trial 2 is held: no rank is free
    second = [found.take(rank) for rank in range(4)]
    assert len({lease.number for lease in second}) == 1
    assert second[0].ranks == Ranks(0, "s0", 0, 4)
    found.end(second[0])
    assert found.orders() == [[2], [2], [2], [2]]
    found.end(found.take(0))
    assert found.orders() == [[3], [2, 4], [2], [2]]


def test_a_large_trial_of_one_copy_leaves_the_others_to_small_ones() -> None:
    found = Dispatching([1, 4, 1, 1], copies=2)
    assert found.orders(0) == [[0], [2], [3], []]
    assert found.orders(1) == [[1]] * 4


def test_orders_that_a_rank_of_their_group_has_taken_are_not_taken_back() -> None:
    found = Dispatching([1, 2, 4])
    assert found.orders() == [[0, 2], [2], [1, 2], [1, 2]]
    taken = found.take(2)
    found.tuples.tput(found.tags.lease_of(0, 3), replace(taken, session="before"))
    found.dispatcher.take_back_unclaimed()
    assert found.orders() == [[], [], [], [1, 1]]
    assert [found.queue.is_trial_out(trial) for trial in range(3)] == [False, True, False]
    assert found.queues.place(1) == Ranks(0, "s0", 0, 1)


# -- sweeps, without MPI: each copy has one rank --------------------------------------------------


def swept(
    place: Path | Sweep, copies: int, train: str = "train", **wanted: Any
) -> list[dict[str, Any]]:
    """Run a sweep whose trainers take orders rank by rank; return its records, by trial."""
    sweep = place if isinstance(place, Sweep) else Sweep(place)
    folder = sweep.folder
    own = {"train": f"./mine.py:{train}", "ranks": "x / 5"}
    location = SimpleNamespace(file=Path(trainer.__file__), function="run")
    known = {"locations": {"trainer": location}, "options_of": {"trainer": own}}
    here = {"folder": folder, "run_dir": sweep.run_dir}
    given = {"objective": "score", "maximise": True, **wanted}
    runs = run_modules(
        {
            "master": Module(
                master.run, master.Options.model_validate(given, context={**here, **known})
            ),
            "trainer": Module(
                trainer.run, trainer.Options.model_validate(own, context=here), copies=copies
            ),
        },
        folder=folder,
        run_dir=sweep.run_dir,
        timeout=60,
    )
    assert runs["master"][0].tuples == []  # nothing is left over
    records = [record for record in records_of(sweep.ledger) if "trial" in record]
    return sorted(records, key=lambda record: record["trial"])


X = {"x": {"from": 0, "to": 19, "step": 1}}


def test_all_trials_are_run_and_say_how_many_ranks_they_had(tmp_path: Path) -> None:
    found = swept(tmp_path, 3, space=X)
    assert [record["metrics"]["square"] for record in found] == [x * x for x in range(20)]
    assert {record["metrics"]["ranks"] for record in found} == {1}


def test_a_resumed_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    sweep = Sweep(tmp_path)
    swept(sweep, 2, space=X)
    sweep.cut_ledger(13)  # its heading, and 12 trials
    for _ in range(2):  # the second time all are recorded
        assert len(swept(sweep, 3, space=X)) == 20
        assert sum(sweep.tried.values()) == 28


def test_the_number_of_ranks_may_be_a_part_of_the_objective(tmp_path: Path) -> None:
    found = swept(tmp_path, 2, objective="score - ranks", constraints=["ranks <= 1"], space=X)
    assert {record["state"] for record in found} == {"finished"}


@pytest.mark.parametrize("objective", ["score", "score - ranks"])
def test_a_rule_ends_trials(tmp_path: Path, objective: str) -> None:
    rule = {"rule": "halving", "min_steps": 1, "reduction": 3}
    wanted = {"objective": objective, "early_stopping": rule, "order": "shuffled"}
    found = swept(tmp_path, 2, "steps", **wanted, space=X)
    states = Counter(record["state"] for record in found)
    assert states["stopped"] + states["finished"] == 20
    assert states["stopped"] > 3
    assert {metrics["ranks"] for record in found for _, metrics in record["reports"]} == {1}


def test_deterministic_sweeps_are_alike_for_any_number_of_trainers(tmp_path: Path) -> None:
    found = []
    for copies in (1, 3):
        (tmp_path / str(copies)).mkdir()
        wanted = {"strategy": "tpe", "trials": 40, "deterministic": True, "lag": 4}
        space = {"x": {"from": 0.0, "to": 20.0}}
        records = swept(tmp_path / str(copies), copies, **wanted, space=space)
        found.append([(record["parameters"], record["metrics"]) for record in records])
    assert found[0] == found[1]
    assert len(found[0]) == 40


def test_time_ends_the_sweep_and_what_waits_for_a_rank(tmp_path: Path) -> None:
    space = {"x": {"from": 0.0, "to": 20.0}}
    found = swept(tmp_path, 2, strategy="random", until={"time": 0.5}, space=space)
    assert found
    assert {record["state"] for record in found} <= {"finished", "stopped"}
