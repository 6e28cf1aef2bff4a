"""Modules that run without MPI."""

from __future__ import annotations

import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel, ValidationError
from support import WORKFLOWS

from diel import ANY
from diel.errors import (
    BoundaryError,
    CouplingError,
    RunStopped,
    TupleSpaceFull,
    TupleTimeout,
)
from diel.testing import Module, TupleSpace, run_module, run_modules

SERVERS = [1, 3]


class Options(BaseModel):
    """Of the functions in this file."""

    steps: int = 3


def count_steps(ctx: Any) -> int:
    steps: int = ctx.options.steps
    return steps


def double(ctx: Any) -> Any:
    field = ctx.tuples.tget("field")
    field *= 2
    ctx.tuples.tput(("result", ctx.copy_index), field)
    return field.sum()


@pytest.mark.parametrize("servers", SERVERS)
def test_a_module_finds_and_leaves_tuples(servers: int) -> None:
    with TupleSpace(servers=servers) as space:
        space.client().tput("field", np.ones(5))
        run = run_module(double, space=space, copies=4, copy_index=3)
        assert run.returned == 10.0
        ((tag, value),) = run.tuples
        assert tag == ("result", 3)
        assert value.tolist() == [2.0] * 5
        assert space.client().tget(tag).tolist() == [2.0] * 5
        assert space.tuples() == []


@pytest.mark.parametrize("servers", SERVERS)
def test_the_tuples_of_a_space(servers: int) -> None:
    with TupleSpace(servers=servers) as space:
        client = space.client()
        large = np.arange(100_000)
        client.tput("a", 1)
        client.tput("a", 2)
        client.dist_tput("large", large)
        with client.claim("a"):
            found = space.tuples()
            assert [value for tag, value in found if tag == "a"] == [1, 2]
        np.testing.assert_array_equal(dict(found)["large"], large)
        assert client.count("a") == 1


@pytest.mark.parametrize("servers", SERVERS)
def test_hello(servers: int) -> None:
    with TupleSpace(servers=servers) as space:
        runs = run_modules(
            {
                "greeter": Module("./hello.py:greet", {"greeting": "Hello"}),
                "answerer": Module("./hello.py:answer", copies=2),
            },
            space=space,
            folder=WORKFLOWS,
        )
    (greeter,) = runs["greeter"]
    assert greeter.returned == [f"copy {n} heard 'Hello, answerer!'" for n in (0, 1)]
    assert [run.copy_index for run in runs["answerer"]] == [0, 1]
    assert greeter.tuples == []


def test_pipeline(tmp_path: Path) -> None:
    runs = run_modules(
        {
            "sampler": Module("pipeline.py:sample", {"points": 1000}, copies=3),
            "collector": "pipeline.py:collect",
        },
        folder=WORKFLOWS,
        run_dir=tmp_path,
    )
    assert runs["collector"][0].returned == pytest.approx(3.14, abs=0.2)
    assert len((tmp_path / "pi.txt").read_text().splitlines()) == 3


def test_an_objective_of_a_table_is_a_number(tmp_path: Path) -> None:
    def fill(ctx: Any) -> None:
        ctx.results.declare(["loss"], objective="loss", maximise=False)
        for value in (np.array([0.5]), True):
            ctx.results.add({"loss": value})
        for value in ("0.9", None, [1], 1j, 10**400):
            with pytest.raises(ValueError, match="the objective 'loss' is a number"):
                ctx.results.add({"loss": value})
        file = ctx.results.new_file()
        ctx.results.declare(["loss"], objective="loss", maximise=False, file=file)
        ctx.results.show(1, best=[{"loss": np.float32(0.5)}])
        with pytest.raises(ValueError, match=r"'loss' is a number: '0\.9'"):
            ctx.results.show(2, best=[{"loss": 0.5}, {"loss": "0.9"}])

    run = run_module(fill, run_dir=tmp_path)
    rows = [record["row"] for record in run.records if record["event"] == "ResultAdded"]
    assert rows == [{"loss": 0.5}, {"loss": 1}]
    assert run.records[-1]["best"] == [{"loss": 0.5}]


def test_what_a_module_says_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    def talk(ctx: Any) -> None:
        ctx.progress(1, 2, "half")
        facts = {"device": "cpu", "threads": 2}
        ctx.results.declare(["loss"], objective="loss", maximise=False, facts=facts)
        ctx.results.add({"loss": np.float64(0.5)})
        ctx.log.warning("%s is odd", "this")
        ctx.log.info("only in the log")

    run = run_module(talk, module="talker", copy_index=1, copies=2)
    assert run.records[0] == {
        "event": "ProgressMade",
        "module": "talker",
        "copy": 1,
        "done": 1,
        "total": 2,
        "text": "half",
    }
    assert [record["event"] for record in run.records[1:]] == [
        "ResultsDeclared",
        "ResultAdded",
        "MessageLogged",
    ]
    assert run.records[1]["facts"] == {"device": "cpu", "threads": "2"}
    assert run.results == [{"loss": 0.5}]
    assert run.warnings == ["this is odd"]
    assert "only in the log" in capsys.readouterr().out


def test_the_context_is_as_in_a_run(tmp_path: Path) -> None:
    seen: list[Any] = []
    run_module(seen.append, module="m", group="g", copies_of={"m": 1, "n": 4}, folder=tmp_path)
    (ctx,) = seen
    assert (ctx.module, ctx.group, ctx.copy_index, ctx.copies) == ("m", "g", 0, 1)
    assert (ctx.copies_of, ctx.folder, ctx.threads) == ({"m": 1, "n": 4}, tmp_path, 1)
    assert ctx.options == {}
    for name in ("comm", "module_comm"):
        with pytest.raises(RuntimeError, match="without MPI"):
            getattr(ctx, name)
    with TupleSpace() as space:
        run_module(seen.append, space=space, comm="a communicator")
        assert seen[1].comm == "a communicator"
        assert seen[1].run_dir.is_dir()
        run_dir = seen[1].run_dir
        run_module(seen.append, space=space)
        assert seen[2].run_dir == run_dir
    assert not run_dir.exists()


def test_options_are_checked_as_in_a_run() -> None:
    assert run_module(count_steps).returned == 3
    assert run_module(count_steps, {"steps": 5}).returned == 5
    assert run_module(count_steps, Options(steps=7)).returned == 7
    with pytest.raises(ValidationError, match="steps"):
        run_module(count_steps, {"steps": "many"})


def test_leaving_with_success_is_fine() -> None:
    def leave(ctx: Any) -> None:
        raise SystemExit(ctx.options["status"])

    # There are options of this file, and these are not of their form: bypass them.
    leave.__module__ = "elsewhere"
    assert run_module(leave, {"status": 0}).returned is None
    with pytest.raises(SystemExit):
        run_module(leave, {"status": 3})


def test_what_a_module_raises_is_raised() -> None:
    def fail(ctx: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_module(fail)


def test_the_first_error_of_several_modules_is_raised_with_its_traceback() -> None:
    stopped = []

    def wait(ctx: Any) -> None:
        try:
            ctx.tuples.tget("never")
        except RunStopped as error:
            stopped.append(str(error))
            raise

    def fail(ctx: Any) -> None:
        while ctx.tuples.count("go") == 0:
            pass
        raise ZeroDivisionError("the cause")

    with TupleSpace(servers=3) as space:
        space.client().tput("go", 1)
        with pytest.raises(ZeroDivisionError, match="the cause") as caught:
            run_modules({"a": Module(wait, copies=2), "b": fail}, space=space)
        assert "raise ZeroDivisionError" in "".join(traceback.format_exception(caught.value))
        assert stopped == ["the test has ended this run"] * 2
        # The space is as before, for other clients.
        assert space.client().tget("go", timeout=0) == 1
        assert run_modules({}, space=space) == {}


@pytest.mark.parametrize("servers", SERVERS)
def test_a_wait_that_is_too_long_is_explained(servers: int) -> None:
    def wait(ctx: Any) -> None:
        ctx.tuples.tget(("result", ANY))

    with TupleSpace(servers=servers) as space:
        space.client().tput("results", 1)
        with pytest.raises(
            TimeoutError,
            match=r"after 0.2 s, wait.0 waits for tget\(\('result', ANY\)\); "
            r"in the space: 'results'$",
        ):
            run_module(wait, space=space, timeout=0.2)


def test_several_that_wait_are_all_named() -> None:
    def take(ctx: Any) -> None:
        ctx.tuples.tget(ctx.module)

    def compute(ctx: Any) -> None:
        leave.wait(20)

    leave = threading.Event()
    threading.Timer(0.5, leave.set).start()
    with pytest.raises(TimeoutError) as caught:
        run_modules({"a": take, "b": take, "c": compute}, timeout=0.2)
    assert str(caught.value) == (
        "after 0.2 s, a.0 waits for tget('a'); b.0 waits for tget('b'); "
        "c.0 does not wait in the tuple space; in the space: nothing"
    )
    assert leave.is_set()


def test_a_space_that_closes_ends_the_waits_of_its_clients() -> None:
    raised = []

    def wait(client: Any) -> None:
        try:
            client.tget(("never", 1))
        except RunStopped as error:
            raised.append(error)

    with TupleSpace(servers=2) as space:
        threads = [threading.Thread(target=wait, args=(space.client(),)) for _ in range(3)]
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(20)
    assert len(raised) == 3


def test_a_space_has_the_limits_that_it_is_given() -> None:
    with TupleSpace(memory="64 KiB", when_full="raise") as space, pytest.raises(TupleSpaceFull):
        space.client().tput("a", bytes(2**17))
    with TupleSpace(memory=2**16) as space:
        client = space.client()
        client.tput("a", bytes(60_000))
        with pytest.raises(TupleTimeout):
            client.tput("a", bytes(60_000), timeout=0.05)
    with pytest.raises(ValueError, match="servers"):
        TupleSpace(servers=0)


def test_a_function_that_is_not_there() -> None:
    with pytest.raises(LookupError, match="greet"):
        run_module("hello.py:gret", folder=WORKFLOWS)


def test_modules_speak_directly_and_what_nobody_received_is_a_warning() -> None:
    def left(ctx: Any) -> Any:
        right = ("right", ctx.copy_index)
        assert str(ctx.address) == f"left.{ctx.copy_index} rank 0"
        ctx.send({"n": ctx.copy_index}, to=right)
        ctx.send(np.ones(1000), to=right, tag="unread")
        return ctx.recv(right, timeout=20)

    def right(ctx: Any) -> None:
        source, value = ctx.recv(with_source=True)
        assert source.copy == ctx.copy_index
        ctx.move(value["n"] + 10, to=source)

    runs = run_modules({"left": Module(left, copies=2), "right": Module(right, copies=2)})
    assert [run.returned for run in runs["left"]] == [10, 11]
    for index, run in enumerate(runs["right"]):
        assert run.warnings == [
            f"a message from left.{index} rank 0 to rank 0 (tag 'unread') was never received"
        ]


def test_a_wait_for_a_message_is_explained_and_ends_with_the_others() -> None:
    raised = []

    def wait(ctx: Any) -> None:
        try:
            ctx.recv("compute", tag="never")
        except RunStopped as error:
            raised.append(error)
            raise

    def compute(ctx: Any) -> None:
        if ctx.options.get("fail"):
            raise ZeroDivisionError("the cause")

    compute.__module__ = wait.__module__ = "elsewhere"
    with pytest.raises(
        TimeoutError, match=r"wait.0 waits for recv\(from compute.0 rank 0, tag='ne"
    ):
        run_modules({"wait": wait, "compute": compute}, timeout=0.2)
    with pytest.raises(ZeroDivisionError, match="the cause"):
        run_modules({"wait": wait, "compute": Module(compute, {"fail": True})})
    assert len(raised) == 2


def test_a_single_module_has_nobody_to_speak_to() -> None:
    with pytest.raises(CouplingError, match="without other ranks to send to"):
        run_module(lambda ctx: ctx.send(1, to="other"))
    with pytest.raises(BoundaryError, match=r'no \[\[boundary\]\] "wall"; it has none'):
        run_module(lambda ctx: ctx.boundary("wall"))
