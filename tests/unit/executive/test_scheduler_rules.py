"""Any workflow, whatever happens: the rules of the scheduler hold, and its journal says it all."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support import case_count
from unit.executive.simulation import Case, Simulation, cases

from diel.executive.events import EndRun, StartGroup, StopAsked, StopRun
from diel.exit_codes import STOPPED
from diel.run.records import GroupFinished, GroupSkipped, StopOrdered
from diel.run.resumption import finished_in


def leaves_begun(simulation: Simulation) -> list[tuple[str, tuple[int, ...]]]:
    return [(one.group, one.iteration) for one in simulation.history if isinstance(one, StartGroup)]


@given(cases())
def test_every_workflow_runs_to_its_end_by_the_rules(case: Case) -> None:
    simulation = Simulation(case)
    simulation.run()
    assert simulation.stop is None
    inside = {name for group in case.groups for name in group.groups}
    assert {
        (group.name, ()) for group in case.groups if group.name not in inside
    } <= simulation.complete
    assert simulation.scheduler.free_ranks == tuple(sorted(case.pool))
    assert sum(isinstance(one, EndRun) for one in simulation.history) == 1
    assert simulation.began == simulation.ended


@settings(max_examples=case_count(80))
@given(cases(failing=True))
def test_whatever_fails_the_run_ends_by_the_rules(case: Case) -> None:
    simulation = Simulation(case)
    simulation.run()
    if simulation.stop is None:
        assert simulation.began == simulation.ended
        assert simulation.scheduler.free_ranks == tuple(sorted(case.pool))


@settings(max_examples=case_count(120))
@given(cases(failing=True, conditional=True))
def test_groups_that_are_skipped_keep_the_rules(case: Case) -> None:
    """Every group of a pass has finished or was skipped, in order, and the run ends."""
    simulation = Simulation(case)
    simulation.run()
    if simulation.stop is None:
        assert simulation.began == simulation.ended
        assert {(name, ()) for name in simulation.plans.keys() - simulation.parents.keys()} <= (
            simulation.complete
        )
    assert finished_in(simulation.records) == simulation.scheduler.finished


@settings(max_examples=case_count(80))
@given(cases(failing=True, conditional=True), st.integers(1, 30))
def test_what_was_skipped_stays_so_where_a_run_goes_on(case: Case, events: int) -> None:
    first = Simulation(case)
    first.run(stop_after=events)
    finished, outcomes = finished_in(first.records), first.scheduler.outcomes
    again = Simulation(case, finished, outcomes_before=outcomes, outcomes=dict(first.outcomes))
    again.with_failures |= {  # what had not finished is run again, and may not fail then
        (one.group, one.iteration[:-1])
        for one in first.records
        if isinstance(one, GroupFinished) and one.outcome == "failed"
    }
    again.run()
    before = {(one.group, one.iteration) for one in first.records if isinstance(one, GroupSkipped)}
    now = {(one.group, one.iteration) for one in again.records if isinstance(one, GroupSkipped)}
    assert before.isdisjoint(now | {*leaves_begun(again)})
    if again.stop is None:
        assert {name for name in again.plans if name not in again.parents} <= {
            name for name, _ in again.complete
        }


@given(cases(failing=True))
def test_the_same_events_give_the_same_instructions(case: Case) -> None:
    first, second = Simulation(case), Simulation(case)
    first.run()
    second.run()
    assert first.history == second.history


@settings(max_examples=case_count(80))
@given(cases(failing=True), st.integers(0, 30))
def test_the_journal_says_what_is_finished(case: Case, events: int) -> None:
    simulation = Simulation(case)
    simulation.run(stop_after=events)
    assert finished_in(simulation.records) == simulation.scheduler.finished


@settings(max_examples=case_count(80))
@given(cases(failing=True), st.lists(st.integers(1, 30), min_size=1, max_size=3))
def test_a_run_that_is_cut_short_goes_on_where_it_was(case: Case, cuts: list[int]) -> None:
    """Resumed any number of times, it runs what had not finished, and nothing else."""
    simulation = Simulation(case)
    simulation.run(stop_after=cuts[0])
    records = list(simulation.records)
    for cut in [*cuts[1:], None]:
        before = finished_in(records)
        began, ended = simulation.began, simulation.ended
        unfinished = {place for place, count in began.items() if ended.get(place) != count}
        resumed = Simulation(case, before)
        resumed.run(stop_after=cut)
        assert resumed.scheduler.finished.keys() >= before.keys()
        for place in unfinished:  # they are begun again, from the same number
            if cut is None and resumed.stop is None:
                assert place in resumed.complete or place in resumed.ended
        records += resumed.records
        assert finished_in(records) == resumed.scheduler.finished
        simulation = resumed
    finished = [
        (record.group, *record.iteration) for record in records if isinstance(record, GroupFinished)
    ]
    assert len(finished) == len(set(finished))
    if simulation.stop is None:
        assert simulation.began == simulation.ended


@given(cases(failing=True), st.integers(0, 12))
def test_after_a_stop_nothing_is_started(case: Case, events: int) -> None:
    simulation = Simulation(case)
    simulation.run(stop_after=events)
    if simulation.is_over:
        return
    assert simulation.scheduler.handle(StopAsked("enough")) == [
        StopOrdered(reason="enough"),
        StopRun("enough", exit_code=STOPPED),
    ]
    while simulation.working - simulation.asking or simulation.leaving:
        assert simulation.scheduler.handle(simulation.next_event()) == []
    assert simulation.scheduler.handle(StopAsked("again")) == []
