"""Which cores ranks are bound to: on made-up hosts, from one socket to odd ones."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from support import case_count

from diel.comm.cores import Topology
from diel.errors import LaunchError
from diel.executive.placement.pinning import Pins, choose_cpus
from diel.executive.plans import CopyPlan, GroupPlan, ModulePlan
from diel.loading.module_spec import ExecutableSpec, ModuleSpec

TWO_SOCKETS = Topology(
    tuple((core, core + 8) for core in range(8)),
    ((0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)),
)
PLAIN = Topology(((0,), (1,)), ((0, 1),))
ODD = Topology(((0,), (1, 2), (3, 4, 5)), ((0, 1, 2), (3, 4, 5)))


@pytest.mark.parametrize(
    ("topology", "allowed", "held", "count", "on_one_node", "chosen"),
    [
        (PLAIN, {0, 1}, set(), 1, False, (0,)),
        (PLAIN, {0, 1}, {0}, 1, False, (1,)),
        (PLAIN, {0, 1}, {0}, 2, False, None),
        (PLAIN, {1}, set(), 1, True, (1,)),
        (TWO_SOCKETS, range(16), set(), 6, False, (0, 1, 2, 3, 4, 5)),
        (TWO_SOCKETS, range(16), set(), 10, False, (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)),
        (TWO_SOCKETS, range(16), {0, 1}, 3, True, (4, 5, 6)),  # two cores are left on the first
        (TWO_SOCKETS, range(16), {0, 1}, 2, True, (2, 3)),  # the node that is fuller
        (TWO_SOCKETS, range(16), {0, 1}, 6, True, (4, 5, 6, 7, 12, 13)),  # one node, twice a core
        (TWO_SOCKETS, range(16), set(), 9, True, (0, 1, 2, 3, 4, 5, 6, 7, 8)),  # fits on none
        (TWO_SOCKETS, range(16), {8}, 1, False, (1,)),  # core 0 is half taken
        (TWO_SOCKETS, {3, 11, 12}, set(), 2, False, (3, 12)),
        (TWO_SOCKETS, {3, 11, 12}, set(), 2, True, (3, 11)),
        (ODD, range(6), set(), 3, False, (0, 1, 3)),
        (ODD, range(6), set(), 4, False, (0, 1, 2, 3)),
        (ODD, range(6), set(), 3, True, (0, 1, 2)),
    ],
)
def test_which_cores_are_chosen(
    topology: Topology,
    allowed: set[int],
    held: set[int],
    count: int,
    on_one_node: bool,
    chosen: tuple[int, ...] | None,
) -> None:
    assert choose_cpus(topology, allowed, held, count, on_one_node=on_one_node) == chosen


# -- while groups start and end -------------------------------------------------------------------

HOSTS = ["a"] * 6 + ["b"] * 4


def spec(name: str, pin: str = "cores", threads: int = 1, *, program: bool = False) -> ModuleSpec:
    executable = ExecutableSpec(("x",)) if program else None
    return ModuleSpec(name, None, executable, threads, {}, pin=pin)


def pins(*specs: ModuleSpec, bound: Mapping[int, tuple[int, ...]] | None = None) -> Pins:
    topologies = {"a": TWO_SOCKETS, "b": PLAIN}
    return Pins(HOSTS, topologies, bound or {}, {each.name: each for each in specs})


def copy(module: str, *ranks: int, serial: int = 1) -> CopyPlan:
    return CopyPlan(serial, "g", module, 0, 1, ranks, 0, ranks)


def group(name: str, copies: int, processes: int = 1, **more: object) -> GroupPlan:
    return GroupPlan(name, (ModulePlan(f"m{name}", copies, processes),), **more)  # type: ignore[arg-type]


def test_cores_are_free_again_when_their_ranks_are() -> None:
    cores = pins(spec("m"), spec("free", "none"))
    first, second = copy("m", 6), copy("m", 7, serial=2)
    assert cores.take([first, second]) == []
    assert (cores.of(first), cores.of(second)) == (((0,),), ((1,),))
    assert cores.of(copy("free", 8)) is None
    third = copy("m", 8, serial=3)
    assert cores.take([third]) == [third], "both cores of host b are held"
    assert cores.of(third) == (None,)
    cores.release([6])
    assert cores.take([third]) == []
    assert cores.of(third) == ((0,),)


def test_large_ranks_choose_first_and_hosts_do_not_share_cores() -> None:
    cores = pins(spec("small", "numa"), spec("large", "numa", threads=4))
    small, large = copy("small", 1, 6), copy("large", 2, serial=2)
    assert cores.take([small, large]) == []
    assert cores.of(large) == ((0, 1, 2, 3),)
    assert cores.of(small) == ((4,), (0,))


def test_a_program_has_the_cores_of_its_copy_on_its_host() -> None:
    cores = pins(spec("p", program=True, threads=2))
    plan = copy("p", 4, 5, 6)
    assert cores.take([plan]) == []
    assert cores.of(plan) == ((0, 1, 2, 3), None, None)


def test_ranks_keep_to_what_their_launcher_has_bound_them_to() -> None:
    cores = pins(spec("m", threads=2), bound={1: (2, 3, 5), 2: (2, 3)})
    plans = [copy("m", 1), copy("m", 2, serial=2)]
    assert cores.take(plans) == [plans[0]], "the rank with less choice comes first"
    assert cores.of(plans[1]) == ((2, 3),)


def test_more_ranks_than_cores_are_refused_with_the_numbers() -> None:
    cores = pins(spec("ma"), spec("mb"))
    beside, behind = group("b", 2), group("b", 2, depends=("a",))
    cores.check([group("a", 2), behind], [6, 7, 8, 9])
    with pytest.raises(LaunchError, match=r"of ma, mb: up to 4 cores .* on b, and its 4 ranks may"):
        cores.check([group("a", 2), beside], [6, 7, 8, 9])
    cores.check([group("a", 2), beside], [6, 7])  # no more ranks than cores
    around = GroupPlan("around", groups=("a", "b"))
    with pytest.raises(LaunchError, match="may use 2: run fewer copies or threads"):
        cores.check([group("a", 2), beside, around], [6, 7, 8])
    bound = pins(spec("ma"), bound={6: (0,), 7: (0,)})
    with pytest.raises(LaunchError, match=r"its 2 ranks may use 1: .*leave them more of its CPUs"):
        bound.check([group("a", 2)], [6, 7])


def test_a_rank_that_is_bound_to_fewer_cores_than_threads_is_refused() -> None:
    cores = pins(spec("ma", threads=2), bound={1: (4,), 2: (5, 6)})
    with pytest.raises(LaunchError, match=r"threads need 2 cores of a rank, and rank 1 on a may"):
        cores.check([group("a", 1)], [1, 2])


@pytest.mark.parametrize("seed", range(case_count(40)))
def test_no_core_is_given_twice(seed: int) -> None:
    drawn = random.Random(seed)
    specs = [
        spec(f"m{index}", drawn.choice(["cores", "numa", "none"]), drawn.randint(1, 2))
        for index in range(4)
    ]
    cores = pins(*specs)
    running: dict[int, CopyPlan] = {}
    for serial in range(60):
        idle = [rank for rank in range(6) if rank not in running]
        if idle and drawn.random() < 0.6:
            chosen = drawn.sample(idle, drawn.randint(1, len(idle)))
            plan = copy(drawn.choice(specs).name, *chosen, serial=serial)
            assert cores.take([plan]) == []
            running.update(dict.fromkeys(plan.ranks, plan))
        elif running:
            ended = running[drawn.choice(sorted(running))]
            cores.release(ended.ranks)
            for rank in ended.ranks:
                del running[rank]
        held = [
            cpu
            for plan in set(running.values())
            for cpus in cores.of(plan) or ()
            for cpu in cpus or ()
        ]
        assert len(held) == len(set(held))
