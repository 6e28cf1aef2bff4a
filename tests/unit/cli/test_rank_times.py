"""The table of what ranks spent their time on."""

from __future__ import annotations

from typing import Any

from support import record

from diel.cli.conclusion import rank_times_lines
from diel.run.view import RunView


def account(
    working_s: float, waiting_s: float, communicating_s: float = 0.0, cpu_s: float = 0.0
) -> dict[str, float]:
    return {
        "cpu_s": cpu_s,
        "working_s": working_s,
        "waiting_s": waiting_s,
        "communicating_s": communicating_s,
    }


def lines(ranks: list[dict[str, Any]], modules: list[dict[str, Any]]) -> list[str]:
    view = RunView()
    view.apply(record("TimeAccounted", ranks=ranks, modules=modules))
    return rank_times_lines(view)


def rank(number: int, *copies: str, **times: float) -> dict[str, Any]:
    return {"rank": number, "host": "n", "copies": list(copies), **account(**times)}


def test_a_few_ranks_have_a_line_each() -> None:
    assert lines(
        [
            rank(1, "tuple server", working_s=19, waiting_s=1, cpu_s=0.4),
            rank(
                2, "a.0", "b.0", "c.1", "a.1", working_s=7, waiting_s=2, communicating_s=1, cpu_s=19
            ),
            rank(3, working_s=0, waiting_s=0),
        ],
        [],
    ) == [
        "",
        "  rank  host  what ran there       working  waiting  communicating  CPU",
        "  1     n     tuple server          95%       5%       0%             2%",
        "  2     n     a.0, b.0 and 2 more   70%      20%      10%           190%",
        "  3     n     nothing              -        -        -              -",
        "",
    ]


def test_many_ranks_are_summed_up_by_module() -> None:
    pool = [rank(number, "a.0", working_s=1, waiting_s=1) for number in range(2, 42)]
    found = lines(
        [rank(1, "tuple server", working_s=1, waiting_s=3), *pool],
        [{"module": "a", "ranks": 40, **account(3, 1, cpu_s=2)}],
    )
    assert found == [
        "",
        "  what ran                  ranks  working  waiting  communicating  CPU",
        "  tuple server              1       25%      75%       0%             0%",
        "  a                         40      75%      25%       0%            50%",
        "  all, and between modules  40      50%      50%       0%             0%",
        "",
    ]


def test_letters_that_are_two_columns_wide_are_counted_as_such() -> None:
    found = lines(
        [rank(1, "名前.0", working_s=1, waiting_s=0), rank(2, working_s=0, waiting_s=0)], []
    )
    assert found[1:-1] == [
        "  rank  host  what ran there  working  waiting  communicating  CPU",
        "  1     n     名前.0          100%       0%       0%             0%",
        "  2     n     nothing         -        -        -              -",
    ]


def test_a_run_that_says_nothing_has_no_table() -> None:
    assert rank_times_lines(RunView()) == []
    assert lines([], []) == []
