"""NVIDIA's compiler refuses and warns of kernels that g++ takes, and is asked once of each."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import cuda_emulator
import fake_cupy
import nvrtc
import pytest


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> nvrtc.Nvrtc:
    """The compiler, with nothing kept of what it took."""
    found = nvrtc.installed()
    if isinstance(found, str):
        pytest.skip(found)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return found


def kernel(name: str, body: str) -> str:
    return f'extern "C" __global__ void {name}(float* x) {{ {body} }}\n'


MANY = "\n".join(
    ["volatile float* y = x;", *(f"const float a{i} = y[{i}];" for i in range(400))]
    + [f"y[{i}] = a{i};" for i in range(400)]
)
"""Statements that hold more numbers at a time than a thread has registers."""


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("undeclared", "x[0] = __builtin_inff();", '"__builtin_inff" is undefined'),
        ("unused", "const int y = 1; x[0] = 2;", '"y" was declared but never referenced'),
        ("out_of_range", "x[0] = 1e999;", "floating constant is out of range"),
        ("spills", MANY, "Registers are spilled to local memory"),
    ],
)
def test_a_kernel_that_only_gnu_takes_fails_the_test_that_builds_it(
    compiler: nvrtc.Nvrtc, name: str, body: str, message: str
) -> None:
    module = fake_cupy.RawModule(code=kernel(name, body))
    for _ in range(2):  # what was refused is not kept
        with pytest.raises(nvrtc.KernelRefused, match=rf"{name} for sm_90:\n(.|\n)*{message}"):
            module.get_function(name)


def test_a_kernel_is_compiled_once_for_each_architecture(
    compiler: nvrtc.Nvrtc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "ARCHITECTURES", ("sm_90", "compute_80", "compute_120"))
    asked = []
    made = nvrtc.Nvrtc.made

    def counted(self: nvrtc.Nvrtc, *arguments: object) -> tuple[str, bytes]:
        asked.append(arguments)
        return made(self, *arguments)

    monkeypatch.setattr(nvrtc.Nvrtc, "made", counted)
    for _ in range(2):
        nvrtc.check("one", kernel("one", "x[0] = 1;"))
    architectures = [options[0].partition("=")[2] for _, _, options in asked]
    assert architectures == ["sm_90", "compute_80", "compute_120"]
    nvrtc.check("one", kernel("one", "x[0] = 2;"))
    assert len(asked) == 6


def test_of_kernels_that_share_a_launch_some_are_optimised(compiler: nvrtc.Nvrtc) -> None:
    program = kernel("joint", "const int y = 1; x[0] = 2;" + " " * nvrtc.LONG)
    names = [f"joint_{number}" for number in range(10 * nvrtc.SAMPLE)]
    optimised = [
        name
        for name in names
        if "--ptxas-options=--warn-on-spills" in nvrtc._options("sm_90", name, name + program)
    ]
    assert 3 < len(optimised) < 3 * nvrtc.SAMPLE
    # The rest are compiled too.
    (name, *_) = (name for name in names if name not in optimised)
    with pytest.raises(nvrtc.KernelRefused, match="never referenced"):
        nvrtc.check(name, f"// {name}\n{program}")


def test_without_the_compiler_nothing_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    reason = nvrtc.installed.__wrapped__()
    assert "nvidia-cuda-nvrtc (the extra nvrtc) is not installed" in str(reason)
    monkeypatch.setattr(nvrtc, "installed", lambda: reason)
    nvrtc.check("nonsense", "nonsense")


@pytest.mark.skipif(cuda_emulator.COMPILER is None, reason="there is no C++ compiler")
def test_two_kernels_of_one_name_are_refused() -> None:
    fake_cupy.RawModule(code=kernel("twice", "x[0] = 1;")).get_function("twice")
    with pytest.raises(AssertionError, match="two kernels are named twice"):
        fake_cupy.RawModule(code=kernel("twice", "x[0] = 2;")).get_function("twice")
