"""openDIEL's names."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from diel import ANY
from diel.errors import AddressError, RunStopped, TagError
from diel.iel import (
    IEL_dist_tget,
    IEL_dist_tput,
    IEL_move,
    IEL_recv,
    IEL_send,
    IEL_tget,
    IEL_tput,
)
from diel.loading.context import current_context
from diel.testing import TupleSpace, run_module, run_modules

SERVERS = [1, 3]
FIELD = np.arange(30_000.0).reshape(100, 300)


def put(ctx: Any) -> None:
    IEL_tput("parameters", {"rate": 0.1})
    IEL_tput(("n", 1), 7)
    IEL_dist_tput("field", FIELD)


def get(ctx: Any) -> Any:
    assert current_context() is ctx
    return IEL_tget("parameters"), IEL_tget(("n", ANY)), IEL_dist_tget("field")


@pytest.mark.parametrize("servers", SERVERS)
def test_two_modules_exchange_tuples(servers: int) -> None:
    with TupleSpace(servers=servers) as space:
        runs = run_modules({"get": get, "put": put}, space=space)
        parameters, n, field = runs["get"][0].returned
        assert (parameters, n) == ({"rate": 0.1}, 7)
        np.testing.assert_array_equal(field, FIELD)
        assert space.tuples() == []


def test_a_put_does_not_wait_for_who_takes_it_and_a_get_does_wait() -> None:
    with TupleSpace() as space:
        run_module(put, space=space)
        assert run_module(get, space=space).returned[1] == 7
        with pytest.raises(TimeoutError, match=r"waits for tget\('never'\)"):
            run_module(lambda ctx: IEL_tget("never"), space=space, timeout=0.1)


def test_a_striped_tuple_lies_on_all_servers() -> None:
    with TupleSpace(servers=3) as space:
        run_module(put, space=space)
        stores = space._transport._stores
        assert all(store.memory.held_bytes >= FIELD.nbytes // 3 for store in stores)


@pytest.mark.parametrize(
    "call",
    [
        lambda: IEL_tput("a", 1),
        lambda: IEL_tget("a"),
        lambda: IEL_dist_tput("a", b""),
        lambda: IEL_dist_tget("a"),
        lambda: IEL_send(1, "a"),
        lambda: IEL_recv(),
        lambda: IEL_move(1, "a"),
        current_context,
    ],
)
def test_without_a_module_there_is_no_space(call: Any) -> None:
    def elsewhere(ctx: Any) -> list[BaseException]:
        raised: list[BaseException] = []

        def try_it() -> None:
            try:
                call()
            except RuntimeError as error:
                raised.append(error)

        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
        return raised

    run = run_module(elsewhere)
    assert len(run.returned) == 1
    for _ in range(2):  # before and after a module
        with pytest.raises(RuntimeError, match="no module is running here") as caught:
            call()
        assert not isinstance(caught.value, RunStopped)
        with pytest.raises(ZeroDivisionError):
            run_module(lambda ctx: 1 // 0)


def test_the_error_says_which_call_it_was() -> None:
    with pytest.raises(RuntimeError, match=r"^IEL_dist_tput: no module is running here"):
        IEL_dist_tput("a", 1)


def test_other_errors_are_those_of_the_tuple_space() -> None:
    with pytest.raises(TagError):
        run_module(lambda ctx: IEL_tput("", 1))


WALL = {
    "name": "wall",
    "shape": [2, 5000],
    "owners": [{"module": "ask", "section": [[0, 1], [0, 5000]]}],
    "readers": [{"module": "answer", "section": [[0, 1], [0, 5000]]}],
}


def test_two_modules_speak_directly() -> None:
    def ask(ctx: Any) -> Any:
        IEL_send(FIELD, "answer", tag="field").wait()
        IEL_move("moved", to=("answer", 0, 0))
        wall = ctx.boundary("wall")
        for step in range(3):
            wall.owned[0][...] = step
            IEL_send(wall) if step < 2 else IEL_move(wall)
        return IEL_recv("answer")

    def answer(ctx: Any) -> Any:
        assert IEL_recv(tag="field", out=np.empty_like(FIELD)).sum() == FIELD.sum()
        assert IEL_recv("ask") == "moved"
        wall = ctx.boundary("wall")
        seen = [IEL_recv(wall)[0, -1] for _ in range(3)]
        IEL_send(seen, "ask")

    runs = run_modules({"ask": ask, "answer": answer}, boundaries=[WALL])
    assert runs["ask"][0].returned == [0, 1, 2]


@pytest.mark.parametrize("call", [IEL_send, IEL_move])
def test_without_an_address_only_a_boundary_is_sent(call: Any) -> None:
    with pytest.raises(AddressError, match="say to whom, unless it is a shared boundary"):
        run_modules({"a": lambda ctx: call(3)})
