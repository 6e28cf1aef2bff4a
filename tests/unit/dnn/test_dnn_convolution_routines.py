"""Routines of convolution: each against NumPy's in float64, K models, the table that chooses."""

import json

import numpy as np
import pytest
from image_problems import convolution_inputs, convolution_of, exact, run

pytest.importorskip("numba", reason="Numba is not installed: there is no choice")

from dnn.backend import Ops, ops_for, routines
from dnn.backend.cpu import convolutions, im2col, indirect
from dnn.backend.routines import ConvolutionChoices, RoutineTable, convolution_key
from dnn.errors import ConfigurationError

OPS = ops_for("cpu")
ROUTINES = {
    "im2col": im2col.routine,
    "batched_gemm": convolutions.batched_gemm,
    "fft": convolutions.fft,
}
WRONG = 10
"""By how many units in the last place of the largest value each may be wrong, at these shapes."""


@pytest.mark.parametrize("name", ROUTINES)
def test_each_routine_computes_what_numpy_does(name):
    taken = 0
    for seed in range(60):
        problem = convolution_of(seed)
        if problem.kind == "forward":
            problem = problem._replace(bias=seed % 2 == 0, relu=seed % 3 == 0)
        routine = ROUTINES[name](problem)
        if routine is None:
            continue
        taken += 1
        inputs = convolution_inputs(problem, seed)
        expected = exact(problem, inputs)
        largest = np.finfo("f4").eps * max(np.abs(expected).max(), 1)
        wrong = np.abs(run(OPS, routine, problem, inputs) - expected).max() / largest
        assert wrong < WRONG, (seed, problem, wrong)
    assert taken >= 10


@pytest.mark.parametrize("name", ROUTINES)
@pytest.mark.parametrize("stacked", [(True, True), (True, False), (False, True)])
def test_each_of_k_models_is_what_it_is_alone(name, stacked):
    for seed, kind in enumerate(("forward", "data", "weights")):
        problem = convolution_of(
            seed, kind=kind, models=3, stacked=stacked, layout="NHWC", stride=(1, 1),
            bias=kind == "forward", relu=kind == "forward",
        )  # fmt: skip
        inputs = convolution_inputs(problem, seed)
        together = run(OPS, ROUTINES[name](problem), problem, inputs)
        alone = problem._replace(models=None, stacked=(False, False))
        for k in range(3):
            mine = [x[k] if has else x for x, has in zip(inputs, (*stacked, True), strict=False)]
            expected = run(OPS, ROUTINES[name](alone), alone, mine)
            np.testing.assert_array_equal(together[k], expected)


# -- the table ------------------------------------------------------------------------------------

LARGE = convolution_of(
    0, kind="forward", layout="NHWC", images=8, channels=32, size=(16, 16), filters=64,
    window=(3, 3), stride=(1, 1), dilation=(1, 1), padding=((1, 1), (1, 1)), groups=1,
)  # fmt: skip
KEY = "forward-NHWC-f4-8x32x16x16-64x3x3-padding1.1.1.1"


@pytest.fixture
def measured(monkeypatch, tmp_path):
    """Keep choices in an empty folder, and list what was measured; each time "direct" wins."""
    monkeypatch.setenv("DNN_KERNEL_CACHE", str(tmp_path / "kernels"))
    monkeypatch.delenv("DNN_ROUTINES", raising=False)
    problems = []

    def measure(ops, problem):
        problems.append(problem)
        return {"routine": "direct", "ms": {"im2col": 2.0, "direct": 1.0}}

    monkeypatch.setattr(routines, "measure_convolution", measure)
    return problems


def test_a_key_says_the_shape_and_not_how_many_models():
    assert convolution_key(LARGE) == KEY
    assert convolution_key(LARGE._replace(models=7, stacked=(True, True), relu=True)) == KEY
    other = LARGE._replace(stride=(2, 1), dilation=(1, 2), groups=2, padding=((0, 0), (0, 0)))
    assert convolution_key(other).endswith("64x3x3-stride2x1-dilation1x2-groups2")


def test_a_shape_is_measured_once_and_then_known(measured):
    assert OPS.convolution(LARGE).name == "direct"
    assert OPS.convolution(LARGE._replace(models=2, stacked=(True, False))).name == "direct"
    assert measured == [LARGE]
    (record,) = OPS.choices.records()
    assert (record["convolution"], record["routine"]) == (KEY, "direct")
    assert "threads" in record["machine"]
    # As another process finds it.
    again = ConvolutionChoices(OPS.choices.folder)
    assert routines.choose_convolution(OPS, LARGE, again).name == "direct"
    assert measured == [LARGE]


def test_small_ones_and_fixed_ones_are_not_measured(measured, monkeypatch):
    first = OPS.convolutions(LARGE)[0].name
    assert OPS.convolution(LARGE._replace(size=(4, 4))).name == first
    monkeypatch.setenv("DNN_ROUTINES", "fixed")
    assert OPS.convolution(LARGE).name == first
    assert measured == []


def test_a_table_has_precedence_and_notes_what_was_measured_later(measured, tmp_path):
    folder = tmp_path / "run"
    text = json.dumps({"convolution": {KEY: "im2col"}, "folder": str(folder)})
    given = RoutineTable.from_json(text)
    ops = ops_for("cpu", given)
    assert ops.convolution(LARGE).name == "im2col"
    other = LARGE._replace(images=9)
    assert ops.convolution(other).name == "direct"
    assert measured == [other]
    assert RoutineTable.from_json(given.to_json()) == given
    assert given.convolutions.names == {KEY: "im2col", convolution_key(other): "direct"}
    (file,) = folder.iterdir()
    assert json.loads(file.read_text())["routine"] == "direct"


@pytest.mark.parametrize("name", ["batched_gemm", "fft"])
def test_what_only_a_table_chooses_is_not_timed(name):
    (offered,) = (each for each in OPS.convolutions(LARGE) if each.name == name)
    assert not offered.is_timed
    table = RoutineTable.from_json(json.dumps({"convolution": {KEY: name}}))
    assert ops_for("cpu", table).convolution(LARGE).name == name

    class Known(Ops):
        def convolutions(self, problem):
            return [offered, *super().convolutions(problem)]

    small = LARGE._replace(images=1, size=(4, 4))
    assert list(routines.measure_convolution(Known(), small)["ms"]) == ["direct"]


def test_the_first_rank_that_writes_decides_for_all(measured, tmp_path):
    ranks = [ConvolutionChoices(tmp_path) for _ in range(3)]
    assert [rank.find(KEY) for rank in ranks] == [None] * 3
    found = [rank.keep(KEY, {"routine": name}) for rank, name in zip(ranks, "abc", strict=True)]
    assert found == ["a"] * 3
    assert ConvolutionChoices(tmp_path).find(KEY) == "a"
    assert [file.name for file in tmp_path.iterdir()] == [f"{KEY}.json"]


def test_where_nothing_can_be_written_the_process_remembers(tmp_path):
    (tmp_path / "file").write_text("")
    choices = ConvolutionChoices(tmp_path / "file" / "folder", is_cache=True)
    assert choices.keep(KEY, {"routine": "a"}) == "a"
    assert choices.keep(KEY, {"routine": "b"}) == "a"
    of_a_run = ConvolutionChoices(tmp_path / "file" / "folder")
    with pytest.raises(ConfigurationError, match=f"{KEY}.json cannot be"):
        of_a_run.keep(KEY, {"routine": "a"})


def test_without_hard_links_the_first_still_decides(tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError("no hard links")

    monkeypatch.setattr(routines.os, "link", refuse)
    ranks = [ConvolutionChoices(tmp_path) for _ in range(2)]
    assert [rank.find(KEY) for rank in ranks] == [None, None]
    assert [rank.keep(KEY, {"routine": name}) for rank, name in zip(ranks, "ab", strict=True)] == [
        "a",
        "a",
    ]


def test_without_a_home_the_process_remembers(measured, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(routines, "cache_folder", no_home)
    routines._choices_in.cache_clear()
    assert OPS.convolution(LARGE).name == OPS.convolution(LARGE).name == "direct"
    assert measured == [LARGE]


@pytest.mark.parametrize("text", ["", "{}", '{"routine": "abacus"}'])
def test_a_broken_or_stale_file_of_the_machine_is_replaced(measured, text):
    folder = OPS.choices.folder
    folder.mkdir(parents=True)
    (folder / f"{KEY}.json").write_text(text)
    assert OPS.convolution(LARGE).name == "direct"
    (record,) = ConvolutionChoices(folder).records()
    assert record["routine"] == "direct"
    assert measured == [LARGE]


def test_one_process_measures_at_a_time(measured):
    fcntl = pytest.importorskip("fcntl", reason="no locks of files here")
    choices = OPS.choices
    with (
        choices.measuring(),
        (choices.folder / ".measuring").open() as file,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (choices.folder / ".measuring").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_another_process_has_measured_meanwhile_is_taken(measured, monkeypatch):
    choices = OPS.choices
    waited = choices.measuring

    def while_waiting():
        ConvolutionChoices(choices.folder).keep(KEY, {"routine": "im2col"})
        return waited()

    monkeypatch.setattr(choices, "measuring", while_waiting)
    assert OPS.convolution(LARGE).name == "im2col"
    assert measured == []


def test_a_run_keeps_what_was_not_measured_too(measured, monkeypatch, tmp_path):
    table = RoutineTable({}).kept_in(tmp_path / "run")
    small = LARGE._replace(size=(4, 4))
    first = OPS.convolutions(LARGE)[0].name
    assert ops_for("cpu", table).convolution(small).name == first
    monkeypatch.setenv("DNN_ROUTINES", "fixed")
    assert ops_for("cpu", table).convolution(LARGE).name == first
    monkeypatch.delenv("DNN_ROUTINES")
    resumed = RoutineTable({}).kept_in(tmp_path / "run")
    assert ops_for("cpu", resumed).convolution(LARGE).name == first
    assert measured == []
    names = {record["convolution"]: record["routine"] for record in resumed.convolutions.records()}
    assert names == {KEY: first, convolution_key(small): first}


def test_an_unknown_way_to_choose_is_refused(measured, monkeypatch):
    monkeypatch.setenv("DNN_ROUTINES", "fastest")
    with pytest.raises(ConfigurationError, match="DNN_ROUTINES must be 'fixed' or not set"):
        OPS.convolution(LARGE)


def test_too_much_memory_is_not_tried_and_too_little_is_not_taken():
    asked = []

    def steps(inputs, out, workspace):
        return [(lambda: None, ())]

    class Known(Ops):
        def convolutions(self, problem):
            sizes = {"failing": 1 << 28, "small": 1 << 10, "huge": 3 << 30}
            return [im2col.Routine(name, size, steps) for name, size in sizes.items()]

        @staticmethod
        def memory(size_bytes):
            asked.append(size_bytes)
            if size_bytes == 1 << 28:
                raise MemoryError
            return Ops.memory(size_bytes)

    found = routines.measure_convolution(Known(), LARGE)
    assert list(found["ms"]) == [found["routine"]] == ["small"]
    assert 3 << 30 not in asked


def test_lists_of_addresses_are_kept_once_for_a_geometry():
    indirect._lists.cache_clear()
    for images, channels in ((1, 32), (2, 64), (3, 32)):
        indirect.routine(LARGE._replace(images=images, channels=channels))
    assert indirect._lists.cache_info().currsize == 1
    assert indirect._lists.cache_info().maxsize is not None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"routine": 3}'])
def test_a_broken_file_is_named(tmp_path, text):
    (tmp_path / f"{KEY}.json").write_text(text)
    with pytest.raises(ConfigurationError, match=rf"{KEY}.json .*remove it"):
        ConvolutionChoices(tmp_path).find(KEY)


def test_a_routine_that_is_not_here_is_an_error():
    table = RoutineTable({}, ConvolutionChoices(names={KEY: "abacus"}))
    with pytest.raises(
        ConfigurationError, match=f"'abacus' for {KEY}, and here there are .*direct;"
    ):
        ops_for("cpu", table).convolution(LARGE)


def test_measuring_takes_the_fastest_and_does_not_repeat_what_is_hopeless():
    now, calls = [0.0], []

    def spend(name, seconds):
        def call():
            calls.append(name)
            now[0] += seconds

        return im2col.Routine(name, 0, lambda inputs, out, workspace: [(call, ())])

    class Known(Ops):
        def convolutions(self, problem):
            return [spend("a", 0.03), spend("b", 0.01), spend("c", 0.031), spend("d", 0.02)]

    found = routines.measure_convolution(Known(), LARGE, clock=lambda: now[0])
    assert found["routine"] == "b"
    assert found["ms"] == {"a": 30.0, "b": 10.0, "c": 31.0, "d": 20.0}
    assert [calls.count(name) for name in "abcd"] == [4, 4, 1, 4]


def test_a_moment_at_which_the_machine_was_busy_decides_nothing():
    now, calls = [0.0], []

    def spend(name, seconds, busy=0):
        def call():
            calls.append(name)
            now[0] += seconds * (1.4 if calls.count(name) <= busy else 1.0)

        return im2col.Routine(name, 0, lambda inputs, out, workspace: [(call, ())])

    class Known(Ops):
        def convolutions(self, problem):
            return [spend("a", 0.012), spend("b", 0.01, busy=4)]

    found = routines.measure_convolution(Known(), LARGE, clock=lambda: now[0])
    assert found == {"routine": "b", "ms": {"a": 12.0, "b": 10.0}}


def test_images_stand_side_by_side_where_all_channels_are_few():
    few = convolution_of(0, groups=1, channels=6, filters=16)
    many = convolution_of(0, groups=1, channels=3, filters=64)
    assert OPS.image_layout([few, few]) == "CHWN"
    assert OPS.image_layout([few, many]) == "NHWC"
