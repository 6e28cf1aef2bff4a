"""The array functions that plans consist of, on a GPU."""

from __future__ import annotations

import functools
import hashlib
import itertools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import dnn
from dnn.backend.convolution import Convolution, Routine
from dnn.backend.cuda import (
    batch_norm,
    batches,
    classification,
    direct_convolution,
    formulas,
    im2col,
    pooling,
    products,
    recurrence,
    reductions,
    tensor_cores,
)
from dnn.backend.cuda.cublas import Cublas, CublasLt, Prepared
from dnn.backend.cuda.joining import Call, Region, Uses
from dnn.backend.cuda.launch import Launcher, Replay
from dnn.backend.cuda.source import Elementwise
from dnn.backend.device import Device, allocating, import_cupy, version_text
from dnn.backend.formula import ADD, COPY, RELU, Formula, UpdateFormula
from dnn.backend.normalisation import BatchNormSums
from dnn.backend.ops import Array, Chain, Ops, Step, empty
from dnn.backend.pooling import Pooling
from dnn.backend.recurrence import GradientArrays, Recurrence
from dnn.backend.rounding import BFLOAT16, HALF, SINGLE
from dnn.backend.routines import (
    CANDIDATES,
    ConvolutionChoices,
    RoutineTable,
    choose_convolution,
    machine_choices,
)

__all__ = ["CudaOps"]

BFLOAT16_ONE = 0x3F80
CAPABILITY_MAJOR = 75  # cudaDevAttrComputeCapabilityMajor


def _launched(function: Callable[..., Any]) -> Any:
    """Return a method that calls a function with the launcher before its arguments."""

    def method(self: CudaOps, *arguments: Any) -> Any:
        return function(self.launcher, *arguments)

    return functools.update_wrapper(method, function)


class CudaOps(Ops):
    """Array functions on a GPU; `Ops` says what they compute and how they are called.

    Parameters
    ----------
    device : Device
    cupy : module, optional
        Replacement of CuPy in tests.
    blas : Cublas, optional
        Replacement of cuBLAS in tests.
    routines : RoutineTable, optional
        Which routine sums up a matrix, by size; without a table it is a kernel of ours.

    Raises
    ------
    DeviceError
        If the GPU cannot be used; the message says what is missing.

    Notes
    -----
    Everything runs in CuPy's current stream. Sums are taken in a fixed order, so that the same
    input gives the same bits on one kind of GPU; no GPU has run it yet.
    """

    description = "CUDA kernels"
    passes = (
        "batch_norm_sums",
        "product_bias",
        "elementwise_fusion",
        "products_together",
        "conversions_first",
    )
    takes_narrow = True
    in_blocks = False

    SIZES = (16, 64, 256, 1024, 4096)
    """Rows and columns of the matrices whose sums are measured."""

    def __init__(
        self,
        device: Device,
        cupy: Any = None,
        blas: Any = None,
        routines: RoutineTable | None = None,
    ) -> None:
        super().__init__(routines)
        if cupy is None:
            device.require()
            cupy = import_cupy()
            cupy.cuda.Device(device.index).use()
        self.device = str(device)
        self.cupy = cupy
        self._index = device.index
        self.launcher = Launcher(cupy, device.index)
        self.blas = Cublas.of_thread(cupy, device.index) if blas is None else blas
        self._ones: dict[np.dtype[Any], Array] = {}
        self._replays: weakref.WeakSet[Replay] = weakref.WeakSet()

    # Plans.

    def chain(self, chain: Chain, inputs: Sequence[Array], out: Array) -> list[Step] | None:
        """Return the call of one kernel for a chain."""
        return [(self.run_elementwise, (formulas.chain(chain, len(inputs)), *inputs, out))]

    def rounded_chain(self, chain: Chain, inputs: Sequence[Array], out: Array) -> list[Step] | None:
        """Return the call of one kernel for a chain; it rounds once, where it stores."""
        return [(self._run_narrow, (formulas.chain(chain, len(inputs)), *inputs, out))]

    def convert(self, x: Array, out: Array) -> list[Step]:
        """Return the call of the kernel that converts between float32 and a narrow type."""
        return [(self._run_narrow, (formulas.of_formula(COPY), x, out))]

    def product(
        self,
        a: Array,
        b: Array,
        out: Array,
        precision: str,
        bias: Array | None = None,
        relu: bool = False,
        workspace: Sequence[Array] = (),
    ) -> list[Step]:
        """Return the call of cuBLASLt where there is a bias or relu, else of cuBLAS.

        Where cuBLASLt cannot, bias and relu are applied by a kernel of their own, which rounds the
        same values.
        """
        fast = precision == "tf32"
        operands = [] if bias is None else [bias]
        if not relu and not operands:
            return [(self._multiply, (a, b, out, fast))]
        if a.shape[-1] and out.size:
            prepared = self.lt.prepare(a, b, out, bias, relu, fast)
            if prepared is not None:
                return [(self._run_prepared, (prepared, a, b, *operands, out))]
        sums = out if out.dtype == SINGLE else empty(self, out.shape, SINGLE)
        chain: Chain = ((ADD, 0, 1),) if operands else ()
        chain += ((RELU, len(operands) * 2),) if relu else ()
        spec = formulas.chain(chain, 1 + len(operands))
        multiply = (self._multiply, (a, b, sums, fast))
        return [multiply, (self._run_narrow, (spec, sums, *operands, out))]

    def sum_narrow(
        self, x: Array, axes: tuple[int, ...], out: Array, workspace: Sequence[Array] = ()
    ) -> list[Step]:
        """Return the call of a sum that reads narrow elements."""
        return [(self._sum, (x, axes, out, True))]

    def finite_flags(self, gradients: Array, out: Array) -> list[Step]:
        """Return the call of a reduction whose result shows whether all elements are finite."""
        sums = empty(self, (*gradients.shape[:-1], 1), gradients.dtype)
        return [(self._finite_flags, (gradients, sums, out))]

    def conditional(
        self, flags: Array, steps: Sequence[Step], written: Sequence[Array]
    ) -> list[Step]:
        """Return `steps`, of which those that write to `written` store nothing where a flag is 0.

        An update of one kernel stores nothing there; for any other function, as of a user's own
        optimizer, rows are copied before and restored afterwards.
        """
        gated: list[Step] = []
        for function, arguments in steps:
            if not any(isinstance(x, self.cupy.ndarray) and _meets(written, x) for x in arguments):
                gated.append((function, arguments))
            elif function == self.run_elementwise:
                spec, *operands = arguments
                gated.append((function, (spec.gated(), *operands, flags)))
            else:
                return super().conditional(flags, steps, written)
        return gated

    def adjust_scale(
        self, flags: Array, scale: Array, counts: Array, interval: int, largest: float
    ) -> list[Step]:
        """Return the call of one kernel that adjusts loss scales."""
        return [(self._adjust_scale, (flags, scale, counts, interval, largest))]

    def elementwise(
        self, formula: Formula, inputs: Sequence[Any], out: Array, workspace: Sequence[Array] = ()
    ) -> Step:
        """Return the call of a formula's kernel; it needs no workspace."""
        return self.run_elementwise, (formulas.of_formula(formula), *inputs, out)

    def update(
        self,
        formula: UpdateFormula,
        rows: Sequence[Array],
        scalars: Sequence[Array],
        workspace: Callable[[Sequence[np.dtype[Any]]], Sequence[Array]],
    ) -> Step:
        """Return the call of an update's kernel; it needs no workspace."""
        return self.run_elementwise, (formulas.of_update(formula), *rows, *scalars)

    def run_elementwise(self, spec: Elementwise, *operands: Any) -> None:
        """Launch the kernel of a formula, a chain or an update."""
        self.launcher.elementwise(spec, operands)

    def run_kernels(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function that launches kernels, with the launcher before its arguments."""
        function(self.launcher, *arguments)

    def _run_narrow(self, spec: Elementwise, *operands: Any) -> None:
        """Launch a kernel whose operands of uint16 are bfloat16."""
        self.launcher.elementwise(spec, operands, bfloat16=True)

    def _multiply(self, a: Array, b: Array, out: Array, fast_tf32: bool) -> None:
        if not a.shape[-1]:
            self._run_narrow(formulas.of_formula(COPY), 0.0, out)
        elif self.launcher.is_recording and not fast_tf32 and products.is_narrow(a, out):
            products.narrow_product(self.launcher, a, b, out)
        elif out.size:
            products.multiply(self.launcher, self.blas, a, b, out, fast_tf32)

    def _run_prepared(self, prepared: Prepared, *operands: Any) -> None:
        *inputs, out = operands
        self.launcher.call(Call(self.lt.run, (prepared,)), Uses.of(inputs, (out,)))

    @functools.cached_property
    def lt(self) -> CublasLt:
        """Handle of cuBLASLt, loaded when a product first has a bias or relu."""
        with self.launcher.gpu:
            return CublasLt(self.cupy, self.blas)

    def link(self, steps: Sequence[Step], scratch: Array | None = None) -> list[Step]:
        """Record the kernels that steps launch, to be replayed as one CUDA graph where possible.

        A function that is no method of this object is called between two graphs.
        """
        linked: list[Step] = []
        for ours, part in itertools.groupby(self._with_sums(steps), self._is_ours):
            if not ours:
                linked += [(self._call_outside, step) for step in part]
                continue
            self.launcher.begin_recording()
            try:
                for function, arguments in part:
                    function(*arguments)
            finally:
                calls = self.launcher.end_recording()
            if calls:
                with self.launcher.gpu:
                    replay = Replay(self.cupy, calls, self.blas.use_current_stream)
                self._replays.add(replay)
                linked.append((replay.run, ()))
        return linked

    def _call_outside(self, function: Callable[..., object], arguments: Sequence[Any]) -> None:
        """Call a function that is no method of this object, which may use CuPy's."""
        with self.launcher.gpu:
            function(*arguments)

    def _with_sums(self, steps: Sequence[Step]) -> list[Step]:
        """Return steps in which sums over few rows are taken by the elementwise step before them.

        So the gradient of a bias takes no kernel of its own. Only with few rows there are enough
        blocks for a GPU. Where memory forbids it, which may depend on the number of networks, a
        kernel takes the sums in the same order, so that they have the same bits.
        """
        joined: list[Step | None] = list(steps)
        for at, (function, arguments) in enumerate(steps):
            if function not in (self.sum, self._sum) or not self._sums_columns(*arguments[:3]):
                continue
            x, _, sums = arguments[:3]
            joined[at] = (self._run_sums, (formulas.of_formula(COPY), x, x, sums))
            for before in range(at - 1, -1, -1):
                step = joined[before]
                if step is None:
                    continue
                if step[0] in (self.run_elementwise, self._run_narrow) and step[1][-1] is x:
                    spec, *operands = step[1]
                    if _may_sum(spec, operands) and not _meets(operands, sums):
                        joined[before] = (self._run_sums, (spec, *operands, sums))
                        joined[at] = None
                    break
                if not self._is_ours(step) or _meets(step[1], sums) or _meets(step[1][-1:], x):
                    break
        return [step for step in joined if step is not None]

    def _sums_columns(self, x: Array, axes: tuple[int, ...], out: Array) -> bool:
        """Say whether a kernel is to sum an array of floats over few rows, as `_with_sums` has it.

        It is no matter of the number of networks.
        """
        if not _are_columns(x, axes, out) or self._sum_routine(x, axes, out) != "kernel":
            return False
        return all(y.dtype.kind == "f" or y.dtype == BFLOAT16 for y in (x, out)) and all(x.strides)

    def _run_sums(self, spec: Elementwise, *operands: Any) -> None:
        *operands_of, sums = operands
        reductions.column_sums(self.launcher, spec, operands_of, sums)

    def _is_ours(self, step: Step) -> bool:
        return getattr(step[0], "__self__", None) is self

    def replays(self) -> list[str]:
        """Return a text for every replay that still exists: its number of calls and how it runs."""
        return sorted(f"{len(replay)} calls as {replay.how}" for replay in self._replays)

    # Memory.

    def memory(self, size_bytes: int) -> Array:  # type: ignore[override]
        """Return new memory as bytes, not initialised; CuPy aligns it to 512 bytes."""
        with self.launcher.gpu, allocating(self.cupy, size_bytes, self._index):
            raw: Array = self.cupy.empty(size_bytes, np.uint8)
        return raw

    def asarray(self, x: Array) -> Array:  # type: ignore[override]
        """Return an array on the GPU, the same one if it is there already."""
        with self.launcher.gpu, allocating(self.cupy, x.nbytes, self._index):
            array: Array = self.cupy.asarray(x)
        return array

    def to_host(self, x: Array) -> Array:  # type: ignore[override]
        """Return a copy on the host, after all earlier work is done."""
        host: Array
        if type(x) is np.ndarray:  # counts of steps, which schedules keep on the host
            host = x.copy()
            return host
        with self.launcher.gpu:
            host = self.cupy.asnumpy(x)
        return host

    def load(self, x: Array, out: Array) -> None:  # type: ignore[override]
        """Copy from the host, broadcast to the shape of `out` and cast to its type."""
        if type(out) is np.ndarray:  # on the host, as in `to_host`
            np.copyto(out, x, casting="unsafe")
            return
        x = x if x.shape == out.shape else np.broadcast_to(x, out.shape)
        # Not `ascontiguousarray`: it would add an axis to an array without axes.
        host = np.array(x, out.dtype, order="C")
        if out.flags.c_contiguous:
            with self.launcher.gpu:
                out.set(host)  # type: ignore[attr-defined]
        else:
            self.copy(self.asarray(host), out)

    def copy(self, x: Array, out: Array) -> None:  # type: ignore[override]
        """Copy `x`, broadcast to the shape of `out` and cast to its type, in one kernel."""
        bits = x.dtype == out.dtype == BFLOAT16  # a view of a narrow array, made contiguous
        self.launcher.elementwise(formulas.of_formula(COPY), (x, out), bits=bits)

    def fill(self, value: float, out: Array) -> None:  # type: ignore[override]
        """Set every element of `out` to a value."""
        self.run_elementwise(formulas.of_formula(COPY), float(value), out)

    take_rows: Any = _launched(batches.take_rows)
    add_rows: Any = _launched(batches.add_rows)
    take_batch: Any = _launched(batches.take_batch)
    end_batch: Any = _launched(batches.end_batch)

    def sum(self, x: Array, axes: tuple[int, ...], out: Array) -> None:  # type: ignore[override]
        """Sum over `axes`; over rows or columns by the routine in the table of routines."""
        self._sum(x, axes, out, False)

    def _sum(self, x: Array, axes: tuple[int, ...], out: Array, bfloat16: bool) -> None:
        axes = tuple(axis % x.ndim for axis in axes)
        self._sum_by(self._sum_routine(x, axes, out), x, axes, out, bfloat16)

    def _sum_routine(self, x: Array, axes: tuple[int, ...], out: Array) -> str:
        axes = tuple(axis % x.ndim for axis in axes)
        if self.routines is None or not _is_sum_of_matrix(x, axes, out):
            return "kernel"
        # The size of one network's matrix, so that K at once get what each would get alone.
        return self.routines("gpu_sum", x.shape[-2] * x.shape[-1]) or "kernel"

    def _sum_by(
        self, how: str, x: Array, axes: tuple[int, ...], out: Array, bfloat16: bool
    ) -> None:
        if how == "gemv" and x.size:
            ones = self._vector_of_ones(x.shape[axes[0]], x.dtype)
            rows = axes[0] == x.ndim - 2
            a, b = (ones.reshape(1, -1), x) if rows else (x, ones.reshape(-1, 1))
            products.multiply(self.launcher, self.blas, a, b, out, False)
        elif how == "library" and x.dtype == out.dtype:
            call = Call(self.cupy.sum, (x, axes, None, out, True))
            self.launcher.call(call, Uses.of((x,), (out,)))
        else:
            reductions.reduce(
                self.launcher, reductions.REDUCTIONS["sum"], [x], axes, out, bfloat16=bfloat16
            )

    def _vector_of_ones(self, length: int, dtype: np.dtype[Any]) -> Array:
        if dtype not in self._ones or len(self._ones[dtype]) < length:
            one = BFLOAT16_ONE if dtype == BFLOAT16 else 1
            self._ones[dtype] = self.asarray(np.full(length, one, dtype))
        return self._ones[dtype][:length]

    def candidates(self) -> Iterator[tuple[str, int, Mapping[str, Callable[[], object]]]]:
        """Yield sums over rows, from small to large; without calls that no CUDA graph can hold."""
        for n in self.SIZES:
            x = self.asarray(np.ones((n, n), np.float32))
            out = empty(self, (1, n), np.float32)
            calls = {}
            for name in CANDIDATES["gpu_sum"]:
                linked = self.link([(self._sum_by, (name, x, (0,), out, False))])
                ((call, arguments),) = self.ready(linked)
                if name == "kernel" or linked[0][0].__self__.how == "one CUDA graph":  # type: ignore[attr-defined]
                    calls[name] = functools.partial(call, *arguments)
            yield "gpu_sum", n * n, calls

    def ready(self, calls: Sequence[Step]) -> Sequence[Step]:
        """Return one call that waits for the GPU, after kernels were compiled and captured."""
        for _ in range(2):  # the second run captures
            self._run_and_wait(calls)
        return [(self._run_and_wait, (calls,))]

    def _run_and_wait(self, calls: Sequence[Step]) -> None:
        with self.launcher.gpu:
            for function, arguments in calls:
                function(*arguments)
            self.cupy.cuda.get_current_stream().synchronize()

    @property
    def choices(self) -> ConvolutionChoices:
        """Choices of convolutions that were measured on this kind of GPU."""
        return machine_choices(*_measured_with(self.cupy, self._index))

    def convolution(self, problem: Convolution) -> Routine:
        """Return the routine that the table of this network names, else the fastest one here."""
        return choose_convolution(self, problem, self.choices)

    def convolutions(self, problem: Convolution) -> Sequence[Routine]:
        """Return the routines of a convolution, the one that is taken unless measured first.

        That is a thread for each element in depthwise convolutions, which have no product of
        matrices; with less precision than float32 a product on tensor cores, if the GPU has them
        and im2col would write columns; and else im2col.
        """
        if problem.is_empty:
            return [Routine("direct", 0, self._no_products)]
        products = [im2col.routine(self, problem)]
        if problem.precision == "float32":
            products.append(direct_convolution.tiles(self, problem))
        elif self._has_tensor_cores and tensor_cores.fits(problem):
            at = int(im2col.is_pointwise(problem))
            products.insert(at, tensor_cores.routine(self, problem))
        if problem.precision == "tf32":
            return products
        direct = direct_convolution.direct(self, problem)
        is_depthwise = problem.channels == problem.groups == problem.filters
        return [direct, *products] if is_depthwise else [*products, direct]

    @functools.cached_property
    def _has_tensor_cores(self) -> bool:
        get = self.cupy.cuda.runtime.deviceGetAttribute
        return bool(get(CAPABILITY_MAJOR, self._index) >= tensor_cores.LEAST_CAPABILITY)

    def _no_products(
        self, inputs: Sequence[Array], out: Array, workspace: Array | None
    ) -> list[Step]:
        """Return the call that writes zeros, for a convolution that has nothing to sum up."""
        return [(self._run_narrow, (formulas.of_formula(COPY), 0.0, out))] if out.size else []

    def image_layout(self, problems: Sequence[Convolution]) -> str:
        """Return NHWC, in which products have contiguous rows, and threads read neighbours."""
        return "NHWC" if problems else "NCHW"

    def pooling(self, problem: Pooling) -> Routine:
        """Return the routine that computes a pooling by one kernel."""
        return pooling.routine(self, problem)

    def recurrence(
        self,
        given: Recurrence,
        inputs: Array,
        bias: Array,
        hidden_bias: Array,
        transposed: Array,
    ) -> list[Step]:
        """Return the calls of one kernel over all time steps where its weights fit the cache."""
        if not recurrence.fits(given):
            return super().recurrence(given, inputs, bias, hidden_bias, transposed)
        arguments = (given, inputs, bias, hidden_bias, transposed)
        return [
            (self.copy, (given.weight.swapaxes(-1, -2), transposed)),
            (self.run_kernels, (recurrence.forward, *arguments)),
        ]

    def recurrence_gradient(self, given: Recurrence, arrays: GradientArrays) -> list[Step]:
        """Return the calls of one kernel over all time steps where its weights fit the cache."""
        if not recurrence.fits(given):
            return super().recurrence_gradient(given, arrays)
        weight, space = given.weight, arrays.workspace[-1]
        if recurrence.is_aligned(weight):
            return [(self.run_kernels, (recurrence.gradient, given, arrays, weight))]
        return [
            (self.copy, (weight, space)),
            (self.run_kernels, (recurrence.gradient, given, arrays, space)),
        ]

    def batch_norm(self, problem: BatchNormSums) -> Routine:
        """Return the routine that sums up numbers of batch normalisation by one kernel."""
        return batch_norm.routine(self, problem)

    prod: Any = _launched(reductions.reduction("prod"))
    max: Any = _launched(reductions.reduction("max"))
    min: Any = _launched(reductions.reduction("min"))
    argmax: Any = _launched(reductions.argmax)
    sum_of_squares: Any = _launched(reductions.sum_of_squares)
    all_finite: Any = _launched(reductions.all_finite)
    _finite_flags: Any = _launched(reductions.finite_flags)

    log_softmax: Any = _launched(classification.log_softmax)
    mean_cross_entropy: Any = _launched(classification.mean_cross_entropy)
    tally_classes: Any = _launched(classification.tally_classes)

    uniform_noise: Any = _launched(batches.uniform_noise)

    clip_factor: Any = _launched(formulas.clip_factor)
    _adjust_scale: Any = _launched(formulas.adjust_scale)
    adam_coefficients: Any = _launched(formulas.adam_coefficients)

    def gemm(self, a: Array, b: Array, out: Array) -> None:  # type: ignore[override]
        """Compute the matrix products ``out = a @ b`` by cuBLAS."""
        self._multiply(a, b, out, False)


@functools.cache
def _measured_with(cupy: Any, index: int) -> tuple[str, str]:
    """Return a name with a hash of all that times on a GPU depend on, and a description."""
    runtime = cupy.cuda.runtime
    name = runtime.getDeviceProperties(index)["name"].decode()
    versions = (cupy.__version__, runtime.runtimeGetVersion(), runtime.driverGetVersion())
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    digest = hashlib.sha256(b"\n".join([*sources, f"{name} {versions}".encode()]))
    about = f"{name}, CUDA {version_text(versions[1])}, dnn {dnn.__version__}"
    return f"routines-{digest.hexdigest()[:16]}", about


def _is_sum_of_matrix(x: Array, axes: tuple[int, ...], out: Array) -> bool:
    """Return whether sums are over rows or columns of a contiguous array of floats."""
    if x.ndim < 2 or axes not in ((x.ndim - 2,), (x.ndim - 1,)) or not x.flags.c_contiguous:
        return False
    if out.dtype == np.float64:
        return x.dtype == np.float64
    return out.dtype == SINGLE and x.dtype in (SINGLE, HALF, BFLOAT16)


def _meets(arguments: Sequence[Any], x: Array) -> bool:
    """Return whether one of the arguments of a step, or an array in one, shares memory with `x`."""
    return any(
        _meets(each, x) if isinstance(each, (list, tuple)) else Region.of(each).overlaps(region)
        for region in (Region.of(x),)
        for each in arguments
        if isinstance(each, (list, tuple)) or hasattr(each, "strides")
    )


MOST_SUMMED_ROWS = 512


def _are_columns(x: Array, axes: tuple[int, ...], out: Array) -> bool:
    """Say whether an array of few rows is summed over them, for each of K networks or for one."""
    rows = x.ndim - 2
    return (
        x.ndim in (2, 3)
        and tuple(axis % x.ndim for axis in axes) == (rows,)
        and x.shape[rows] <= MOST_SUMMED_ROWS
        and out.shape == (*x.shape[:rows], 1, x.shape[-1])
    )


def _may_sum(spec: Elementwise, operands: Sequence[Any]) -> bool:
    """Say whether a kernel can also sum what it writes, its last operand: all are of floats."""
    arrays = [x for x in operands if hasattr(x, "dtype")]
    floats = all(x.dtype.kind == "f" or x.dtype == BFLOAT16 for x in arrays)
    return floats and spec.writes == spec.parameters[-1:] == spec.only_written and not spec.gate
