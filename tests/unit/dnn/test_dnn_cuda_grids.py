"""No more blocks are started than a GPU runs at once, and results do not depend on how many."""

from __future__ import annotations

import cuda_emulator
import fake_cupy
import numpy as np
import nvrtc
import occupancy
import pytest

import dnn
from dnn.backend.cuda import joining, launch
from dnn.backend.cuda.launch import Launcher
from dnn.backend.cuda.source import THREADS, for_each, function

if cuda_emulator.COMPILER is None:
    pytest.skip("there is no C++ compiler to run CUDA kernels with", allow_module_level=True)

needs_nvrtc = pytest.mark.skipif(
    isinstance(nvrtc.installed(), str), reason="nvrtc (the extra nvrtc) is not installed"
)

COPIED = function(
    "copied_in_turns",
    "const float* x, float* out, const long long n",
    for_each("out[i] = x[i];"),
)
SHARING = function(
    "sharing_memory",
    "float* out",
    f"""__shared__ float kept[{10 << 10}];
    for (int i = threadIdx.x; i < {10 << 10}; i += {THREADS}) kept[i] = (float)i;
    __syncthreads();
    out[blockIdx.x] = kept[threadIdx.x ^ 1];""",
)


@pytest.fixture
def launcher():
    return Launcher(fake_cupy)


def grids(launcher, *launches):
    """Return how many blocks are started by launches that are recorded."""
    launcher.begin_recording()
    for given in launches:
        launcher.launch(*given)
    return [call.arguments[0] for call in launcher.end_recording()]


def test_a_kernel_has_as_many_blocks_as_the_gpu_has_at_once(launcher):
    x = fake_cupy.empty(1, "f4")
    most = occupancy.PROCESSORS * occupancy.PROCESSOR_THREADS // THREADS
    for wanted, started in ((1, 1), (most, most), (most + 1, most), (1 << 40, most)):
        arguments = [x, x, np.int64(1)]
        assert grids(launcher, (COPIED, wanted, arguments, False)) == [(started,)]


@needs_nvrtc
def test_memory_that_a_block_shares_leaves_room_for_fewer(launcher):
    # 40 KiB and the 1 KiB that CUDA takes of 228 KiB.
    blocks = 5 * occupancy.PROCESSORS
    assert grids(launcher, (SHARING, 1000, [fake_cupy.empty(1000, "f4")], False)) == [(blocks,)]
    found = occupancy.resources(nvrtc.installed(), SHARING.name, SHARING.program)
    assert found.shared_bytes == 40 << 10
    assert found.registers >= 8


@needs_nvrtc
@pytest.mark.parametrize(("registers", "blocks"), [(32, 8), (33, 6), (56, 4), (128, 2), (255, 1)])
def test_registers_of_threads_leave_room_for_fewer(registers, blocks, monkeypatch):
    given = occupancy.Resources(registers, 0)
    monkeypatch.setattr(occupancy, "resources", lambda *_: given)
    assert occupancy.resident_blocks("any", "", 256) == blocks


def test_it_is_asked_once_of_a_kernel_and_not_where_all_blocks_fit(launcher, monkeypatch):
    asked = []
    monkeypatch.setattr(occupancy, "resident_blocks", lambda name, *_: asked.append(name) or 3)
    kernel = function("asked_once", COPIED.parameters, COPIED.body)
    x = fake_cupy.empty(1, "f4")
    for wanted in (1, 132, 133, 500):
        (started,) = grids(launcher, (kernel, wanted, [x, x, np.int64(1)], False))
        assert started == (min(wanted, 3 * 132),)
    assert asked == ["asked_once"]
    launch.resident_blocks.cache_clear()


def test_kernels_that_share_a_launch_have_all_their_blocks_the_fewest_first(launcher, monkeypatch):
    monkeypatch.setattr(occupancy, "resident_blocks", lambda *_: 1)
    x, outs = fake_cupy.empty(1, "f4"), [fake_cupy.empty(1, "f4") for _ in range(3)]
    given = [
        (COPIED, blocks, [x, out, np.int64(1)])
        for blocks, out in zip((1 << 20, 3, 500), outs, strict=True)
    ]
    launcher.begin_recording()
    for each in given:
        launcher.launch(*each)
    (call,) = launcher.end_recording()
    (blocks,), _, arguments = call.arguments
    assert blocks == sum(arguments[:3])
    assert [*arguments[:3]] == [3, 500, 1 << 20]
    assert all(isinstance(n, np.int64) for n in arguments[:3])
    assert [id(x) for x in arguments[4::3]] == [id(outs[i]) for i in (1, 2, 0)]


NETWORKS = {
    "images": lambda: [
        dnn.Input(3, 8, 8),
        *(dnn.Conv2D(6, 3, padding=1), dnn.BatchNorm(), dnn.Activation("relu")),
        *(dnn.MaxPool2D(2), dnn.Conv2D(8, 3), dnn.Activation("relu"), dnn.Flatten()),
        *(dnn.Dropout(0.3), dnn.FullyConnected(70), dnn.Activation("tanh")),
        dnn.FullyConnected(4),
    ],
    "sequences": lambda: [dnn.Input(5, 3), dnn.LSTM(6), dnn.FullyConnected(4)],
}


@pytest.mark.parametrize("name", NETWORKS)
def test_results_are_the_same_with_one_block(name, monkeypatch):
    fake_cupy.install(monkeypatch)
    shape = NETWORKS[name]()[0].shape
    x = np.random.default_rng(0).normal(size=(24, *shape)).astype("f4")
    y = np.arange(24) % 4

    def trained():
        network = dnn.NeuralNetwork(
            NETWORKS[name](), optimizer=dnn.Adam(0.01), seed=1, device="cuda"
        )
        history = network.fit(x, y, epochs=2, batch_size=12, progress=False)
        return history.loss, network.predict_proba(x)

    losses, found = trained()
    monkeypatch.setattr(launch, "resident_blocks", lambda *_: 1)
    monkeypatch.setattr(joining, "MOST_LANES", 1)
    launches = []
    call = Launcher._call

    def limited(launcher, given):
        launcher.processors = 1
        made = call(launcher, given)
        launches.append(made.arguments[0] == (given.blocks if given.lanes else 1,))
        return made

    monkeypatch.setattr(Launcher, "_call", limited)
    with_one_block, same = trained()
    assert all(launches)
    assert with_one_block == losses
    np.testing.assert_array_equal(same, found)
