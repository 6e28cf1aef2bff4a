"""cuBLAS and cuBLASLt on the CPU: functions by their C names that read and write at addresses.

Stands in for what `dnn.backend.cuda.cublas.load_library` returns. Arguments are checked as ctypes
and the libraries would see them: a pointer or a 64-bit number that ctypes would cut to 32 bits, a
combination of types that no GPU multiplies, a leading dimension that is too short, a descriptor's
attribute of a wrong size, an algorithm of another product, a capture without a workspace.
Numbers of types, attributes and epilogues are those of cuBLAS 13's headers.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from fake_streams import Stream, stream_at

CODES = {0: "f4", 1: "f8", 2: "f2", 14: "u2"}
"""cudaDataType: CUDA_R_32F, _64F, _16F, _16BF."""

TYPES_OF_COMPUTE = {
    68: {(2, 2, 2), (2, 2, 0), (14, 14, 14), (14, 14, 0), (0, 0, 0)},
    77: {(0, 0, 0)},
    70: {(1, 1, 1)},
}
"""By cublasComputeType_t (32F, 32F_FAST_TF32, 64F) the types of A, B and C that go together."""

EPILOGUES = {1: (False, False), 2: (False, True), 4: (True, False), 6: (True, True)}
"""By cublasLtEpilogue_t: whether a bias is added, and whether there is a relu."""

ATTRIBUTES = {
    "MatmulDesc": {0: 4, 1: 4, 2: 4, 3: 4, 4: 4, 7: 4, 8: 8, 10: 8, 26: 4},
    "MatrixLayout": {0: 4, 1: 4, 2: 8, 3: 8, 4: 8, 5: 4, 6: 8},
    "MatmulPreference": {0: 4, 1: 8, 5: 4, 6: 4, 7: 4, 8: 4},
}
"""Bytes of the attributes of each kind of descriptor, by number."""

RESULT_BYTES = 96


class Multiplication(NamedTuple):
    """A product that a library was asked for; types as cudaDataType, of A, B and the result."""

    function: str
    types: tuple[int, int, int]
    compute: int
    epilogue: int
    rows: int
    columns: int
    inner: int
    batch: int


@dataclass(frozen=True)
class Matrices:
    """A batch of matrices op(X), of which one column follows the other after `lead` elements."""

    code: str
    address: int
    transposed: bool
    rows: int
    columns: int
    lead: int
    step: int

    def __getitem__(self, index: int) -> np.ndarray:
        shape = (self.columns, self.rows) if self.transposed else (self.rows, self.columns)
        assert self.lead >= shape[0], "a leading dimension is shorter than a column"
        size = np.dtype(self.code).itemsize
        extent = ((shape[1] - 1) * self.lead + shape[0]) * size
        raw = (ctypes.c_uint8 * extent).from_address(self.address + index * self.step * size)
        matrix = np.ndarray(shape, self.code, raw, strides=(size, self.lead * size))
        return matrix.T if self.transposed else matrix


class Scattered(Matrices):
    """Matrices each of which has an address of its own, in memory at `address`."""

    def __getitem__(self, index: int) -> np.ndarray:
        at = ctypes.c_int64.from_address(self.address + 8 * index).value
        return Matrices(self.code, at, *tuple(vars(self).values())[2:])[0]


def widened(x: np.ndarray) -> np.ndarray:
    """Return what is computed with: bfloat16's bits and float16 as float32."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64 if x.dtype == np.float64 else np.float32)


def narrowed(x: np.ndarray, code: str) -> np.ndarray:
    """Round to nearest even, to what memory holds."""
    if code != "u2":
        with np.errstate(over="ignore"):
            return x.astype(code)
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + ((bits >> 16 & 1) + 0x7FFF)) >> 16
    return np.where(np.isnan(x), 0x7FC0, rounded).astype(np.uint16)


def tf32(x: np.ndarray) -> np.ndarray:
    """Round to TF32's mantissa of 10 bits, ties away from zero."""
    bits = np.ascontiguousarray(x).view(np.uint32)
    return np.where(np.isfinite(x), ((bits + 0x1000) & 0xFFFFE000).view(np.float32), x)


class Function:
    """A function of a C library; a letter for each parameter: p(ointer), i(nt), q (64 bits)."""

    def __init__(self, name: str, kinds: str, body: Callable[..., int]) -> None:
        self.name, self.kinds, self.body = name, kinds, body
        self.argtypes: Any = None
        self.restype: Any = ctypes.c_int

    def __call__(self, *arguments: Any) -> int:
        if len(arguments) != len(self.kinds):
            message = f"{len(arguments)} arguments for {len(self.kinds)} parameters"
            raise TypeError(f"{self.name}: {message}")
        declared = self.argtypes or [None] * len(arguments)
        parts = zip(self.kinds, arguments, declared, strict=True)
        return self.body(*(self._received(*part) for part in parts))

    def _received(self, kind: str, given: Any, declared: Any) -> int:
        """Return the number that C would get."""
        size = 4 if kind == "i" else 8
        if declared is not None and ctypes.sizeof(declared) != size:
            raise TypeError(f"{self.name}: {declared} is declared for {size} bytes")
        if isinstance(given, int) and (size == 4 or declared is not None):
            if size == 4 and not -(1 << 31) <= given < 1 << 32:
                raise TypeError(f"{self.name}: {given} does not fit into an int")
            return given
        if kind == "p":
            if given is None:
                return 0
            if hasattr(given, "_obj"):  # byref
                return ctypes.addressof(given._obj)
            if isinstance(given, ctypes.Array):
                return ctypes.addressof(given)
            if isinstance(given, (ctypes.c_void_p, ctypes._Pointer)):
                return ctypes.cast(given, ctypes.c_void_p).value or 0
        elif isinstance(given, ctypes._SimpleCData) and ctypes.sizeof(given) == size:
            return int(given.value)
        raise TypeError(f"{self.name}: {given!r} for a parameter of {size} bytes ({kind})")


class Library:
    """What both libraries share: handles, functions made from methods, the product itself."""

    functions: ClassVar[dict[str, str]]
    multiplications: ClassVar[list[Multiplication]] = []

    def __init__(self) -> None:
        self._numbers = itertools.count(0x1000, 16)
        for name, kinds in self.functions.items():
            setattr(self, name, Function(name, kinds, getattr(self, f"_{name}")))

    def _create(self, out: int) -> int:
        ctypes.c_void_p.from_address(out).value = number = next(self._numbers)
        return number

    def _multiply(
        self,
        asked: Multiplication,
        matrices: tuple[Matrices, Matrices, Matrices, Matrices],
        scalars: tuple[int, int],
        stream: int,
        bias: Matrices | None = None,
        relu: bool = False,
    ) -> int:
        """Put ``D = relu(alpha A B + beta C + bias)`` into a stream."""
        if asked.types not in TYPES_OF_COMPUTE.get(asked.compute, ()):
            raise TypeError(f"no GPU multiplies types {asked.types} with compute {asked.compute}")
        kind = ctypes.c_double if asked.compute == 70 else ctypes.c_float
        alpha, beta = (kind.from_address(address).value for address in scalars)
        a, b, c, d = matrices
        for matrix in matrices:
            matrix[0]  # its leading dimension is checked now, not in a replay
        self.multiplications.append(asked)

        def work() -> None:
            for i in range(asked.batch):
                left, right = widened(a[i]), widened(b[i])
                if asked.compute == 77:
                    left, right = tf32(left), tf32(right)
                with np.errstate(over="ignore", invalid="ignore"):
                    out = left @ right
                    out *= kind(alpha).value
                    if beta:
                        out += beta * widened(c[i])
                    if bias is not None:
                        out += widened(bias[i])
                    if relu:
                        # As a kernel's comparison: NaN stays NaN.
                        out[out < 0] = 0
                    d[i][...] = narrowed(out, d.code)

        _stream(stream).put(work)
        return 0


class Cublas(Library):
    """The functions of libcublas that dnn calls."""

    functions: ClassVar = {
        "cublasCreate_v2": "p",
        "cublasDestroy_v2": "p",
        "cublasGetVersion_v2": "pp",
        "cublasGetProperty": "ip",
        "cublasSetStream_v2": "pp",
        "cublasSetWorkspace_v2": "ppq",
        "cublasGemmStridedBatchedEx": "piiiiippiiqpiiqppiiqiii",
        "cublasGemmBatchedEx": "piiiiippiipiippiiiii",
    }

    def __init__(self) -> None:
        super().__init__()
        self._streams: dict[int, int] = {}
        self._workspaces: dict[int, int] = {}

    def _cublasCreate_v2(self, handle: int) -> int:
        self._streams[self._create(handle)] = 0
        return 0

    def _cublasDestroy_v2(self, handle: int) -> int:
        del self._streams[handle]
        return 0

    def _cublasGetVersion_v2(self, handle: int, version: int) -> int:
        ctypes.c_int.from_address(version).value = 130002
        return 0

    def _cublasGetProperty(self, kind: int, value: int) -> int:
        ctypes.c_int.from_address(value).value = (13, 0, 2)[kind]
        return 0

    def _cublasSetStream_v2(self, handle: int, stream: int) -> int:
        _stream(stream)
        self._streams[handle] = stream
        self._workspaces.pop(handle, None)  # the library takes it away, too
        return 0

    def _cublasSetWorkspace_v2(self, handle: int, workspace: int, size: int) -> int:
        assert workspace % 256 == 0, "cuBLAS wants a workspace that is aligned to 256 bytes"
        self._workspaces[handle] = size
        return 0

    def _cublasGemmStridedBatchedEx(self, *given: int) -> int:
        return self._gemm(Matrices, given[:7], given[7:11], given[11:15], given[15:20], *given[20:])

    def _cublasGemmBatchedEx(self, *given: int) -> int:
        a, b, c = ((*each, 0) for each in (given[7:10], given[10:13], given[13:17]))
        return self._gemm(Scattered, given[:7], a, b, c, *given[17:])

    def _gemm(
        self,
        form: type[Matrices],
        product: tuple[int, ...],
        a: tuple[int, ...],
        b: tuple[int, ...],
        c: tuple[int, ...],
        batch: int,
        compute: int,
        algorithm: int,
    ) -> int:
        """Multiply; of a matrix there are address, type, lead and step, of C after beta."""
        handle, transpose_a, transpose_b, rows, columns, inner, alpha = product
        beta, *c = c  # type: ignore[assignment]
        stream = self._streams[handle]
        if _stream(stream).captured is not None and handle not in self._workspaces:
            raise RuntimeError("a capture without a workspace: cuBLAS would allocate one")
        assert algorithm == -1
        types = (a[1], b[1], c[1])
        asked = Multiplication("gemm", types, compute, 1, rows, columns, inner, batch)
        one, two, result = (
            form(CODES[kind], address, transposed, *shape, lead, step)
            for (address, kind, lead, step), transposed, shape in (
                (a, bool(transpose_a), (rows, inner)),
                (b, bool(transpose_b), (inner, columns)),
                (c, False, (rows, columns)),
            )
        )
        return self._multiply(asked, (one, two, result, result), (alpha, beta), stream)


class CublasLt(Library):
    """The functions of libcublasLt that dnn calls; `found` is how many algorithms there are."""

    found: ClassVar[int] = 1
    functions: ClassVar = {
        "cublasLtCreate": "p",
        "cublasLtDestroy": "p",
        "cublasLtGetVersion": "",
        "cublasLtMatmulDescCreate": "pii",
        "cublasLtMatrixLayoutCreate": "piqqq",
        "cublasLtMatmulPreferenceCreate": "p",
        "cublasLtMatmulAlgoGetHeuristic": "pppppppipp",
        "cublasLtMatmul": "ppppppppppppppqp",
    }

    def __init__(self) -> None:
        super().__init__()
        self._described: dict[int, dict[int, int]] = {}
        for kind in ATTRIBUTES:
            name = f"cublasLt{kind}SetAttribute"
            setattr(self, name, Function(name, "pipq", self._setter(kind)))
            name = f"cublasLt{kind}Destroy"
            setattr(self, name, Function(name, "p", self._destroy))

    def _setter(self, kind: str) -> Callable[..., int]:
        def set_attribute(number: int, attribute: int, value: int, size: int) -> int:
            wanted = ATTRIBUTES[kind][attribute]
            assert size == wanted, f"attribute {attribute} of {kind} has {wanted} bytes, not {size}"
            of_size = ctypes.c_int32 if size == 4 else ctypes.c_int64
            self._described[number][attribute] = of_size.from_address(value).value
            return 0

        return set_attribute

    def _destroy(self, number: int) -> int:
        del self._described[number]
        return 0

    def _cublasLtCreate(self, handle: int) -> int:
        self._create(handle)
        return 0

    def _cublasLtDestroy(self, handle: int) -> int:
        return 0

    def _cublasLtGetVersion(self) -> int:
        return 130002

    def _cublasLtMatmulDescCreate(self, out: int, compute: int, scale: int) -> int:
        assert scale == (1 if compute == 70 else 0), "alpha and beta are of the wrong type"
        self._described[self._create(out)] = {0: compute, 3: 0, 4: 0, 7: 1, 8: 0, 10: 0}
        return 0

    def _cublasLtMatrixLayoutCreate(
        self, out: int, kind: int, rows: int, columns: int, lead: int
    ) -> int:
        assert lead >= rows, "a leading dimension is shorter than a column"
        layout = {0: kind, 2: rows, 3: columns, 4: lead, 5: 1, 6: 0}
        self._described[self._create(out)] = layout
        return 0

    def _cublasLtMatmulPreferenceCreate(self, out: int) -> int:
        self._described[self._create(out)] = {1: 0}
        return 0

    def _algorithm(self, described: int, layouts: tuple[int, ...]) -> bytes:
        """Return what names the product: an algorithm of another one is refused."""
        parts = [self._described[number] for number in (described, *layouts)]
        values = [[(key, of[key]) for key in sorted(of) if key != 8] for of in parts]
        return hashlib.blake2b(repr(values).encode(), digest_size=64).digest()

    def _cublasLtMatmulAlgoGetHeuristic(
        self,
        handle: int,
        described: int,
        a: int,
        b: int,
        c: int,
        d: int,
        preference: int,
        wanted: int,
        results: int,
        returned: int,
    ) -> int:
        assert self._described[preference][1] > 0, "no workspace is offered"
        count = min(wanted, self.found)
        ctypes.c_int.from_address(returned).value = count
        for i in range(count):
            ctypes.memset(results + i * RESULT_BYTES, 0, RESULT_BYTES)
            algorithm = self._algorithm(described, (a, b, c, d))
            ctypes.memmove(results + i * RESULT_BYTES, algorithm, len(algorithm))
        return 0 if count else 15  # CUBLAS_STATUS_NOT_SUPPORTED

    def _cublasLtMatmul(
        self,
        handle: int,
        described: int,
        alpha: int,
        a: int,
        layout_a: int,
        b: int,
        layout_b: int,
        beta: int,
        c: int,
        layout_c: int,
        d: int,
        layout_d: int,
        algorithm: int,
        workspace: int,
        workspace_bytes: int,
        stream: int,
    ) -> int:
        layouts = (layout_a, layout_b, layout_c, layout_d)
        expected = self._algorithm(described, layouts)
        assert ctypes.string_at(algorithm, 64) == expected, "an algorithm of another product"
        assert workspace, "no workspace"
        about = self._described[described]
        of_a, of_b, of_c, of_d = (self._described[number] for number in layouts)
        assert of_c[0] == of_d[0]
        transposed = {layout_a: bool(about[3]), layout_b: bool(about[4])}
        addresses = zip((a, b, c, d), layouts, strict=True)
        matrices = [
            self._matrices(at, layout, transposed.get(layout, False) and i < 2)
            for i, (at, layout) in enumerate(addresses)
        ]
        one, two, _, out = matrices
        assert (one.rows, two.columns) == (out.rows, out.columns)
        assert one.columns == two.rows
        assert {of[5] for of in (of_a, of_b, of_c, of_d)} == {of_d[5]}, "batches differ"
        with_bias, relu = EPILOGUES[about[7]]
        bias = None
        if with_bias:
            assert about.get(26, of_d[0]) == of_d[0], "a bias has the type of the result"
            bias = Matrices(out.code, about[8], False, out.rows, 1, out.rows, about[10])
        types = (of_a[0], of_b[0], of_d[0])
        sizes = (out.rows, out.columns, one.columns, of_d[5])
        asked = Multiplication("lt", types, about[0], about[7], *sizes)
        return self._multiply(asked, tuple(matrices), (alpha, beta), stream, bias, relu)

    def _matrices(self, address: int, layout: int, transposed: bool) -> Matrices:
        of = self._described[layout]
        rows, columns = (of[3], of[2]) if transposed else (of[2], of[3])
        return Matrices(CODES[of[0]], address, transposed, rows, columns, of[4], of[6])


def _stream(pointer: int) -> Stream:
    return stream_at(pointer)


def load_library(name: str) -> Library:
    """Return a library by name, as `dnn.backend.cuda.cublas.load_library` does."""
    return {"cublas": Cublas, "cublasLt": CublasLt}[name]()
