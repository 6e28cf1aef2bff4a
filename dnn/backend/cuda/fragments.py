"""Fragments of matrices, which a warp multiplies on tensor cores, in CUDA C++.

Each thread of a warp has some elements of a fragment in its registers; which ones is laid down by
the instruction ``mma``. Its a is of 16 rows, its b of 8 columns. Those of 16 bits are read from
shared memory by ``ldmatrix``, which brings every element to the thread that is to have it; those of
TF32, which it cannot transpose, one by one.

References
----------
.. [1] NVIDIA, PTX ISA 8.7, 9.7.14.5: ``mma`` with m16n8k16 and m16n8k8, and ``ldmatrix``.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["UNITS", "Tile", "Unit", "functions"]


class Unit(NamedTuple):
    """How tensor cores multiply a type: its bits in C++, bytes, name, and `mma`'s depth."""

    element: str
    size: int
    name: str
    depth: int

    @property
    def word(self) -> str:
        """The type of elements in shared memory, in C++: the bits that `mma` takes."""
        return self.element if self.size == 2 else "unsigned int"


UNITS = {
    "f2": Unit("unsigned short", 2, "f16", 16),
    "u2": Unit("unsigned short", 2, "bf16", 16),
    "f4": Unit("float", 4, "tf32", 8),
}


_MULTIPLY = """__device__ __forceinline__ void multiply_add(
    float (&c)[4], const unsigned int (&a)[4], const unsigned int (&b)[2])
{{
    asm volatile("mma.sync.aligned.m16n8k{depth}.row.col.f32.{name}.{name}.f32 "
        "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}
"""

_LOAD_MATRICES = """__device__ __forceinline__ void load_matrices{name}(
    unsigned int (&r)[4], const unsigned short* row)
{{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4{form}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
        : "l"(__cvta_generic_to_shared(row)) : "memory");
}}
"""

_ROUND = """__device__ __forceinline__ unsigned int rounded(float x)
{
    unsigned int bits;
    asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}
"""


def functions(code: str) -> str:
    """Return the device functions of a type."""
    unit = UNITS[code]
    multiply = _MULTIPLY.format(depth=unit.depth, name=unit.name)
    if code == "f4":
        return multiply + _ROUND
    forms = [_LOAD_MATRICES.format(name=f"_{x}" * bool(x), form=f".{x}" * bool(x))
             for x in ("", "trans")]  # fmt: skip
    return "".join([multiply, *forms])


class Tile:
    """A part of a matrix in shared memory, ``{name}_tile[buffer]``.

    Parameters
    ----------
    name : str
        ``"a"``, whose rows are those of the product, or ``"b"``, with its columns.
    by_depth : bool
        Whether neighbours in memory are along the depth, not along rows or columns.
    unit : Unit
    length, depth : int
        Rows or columns; and elements along the depth.
    """

    def __init__(self, name: str, by_depth: bool, unit: Unit, length: int, depth: int) -> None:
        self.name, self.by_depth, self.unit = name, by_depth, unit
        self.length, self.depth = length, depth
        # Lines are apart by what brings their parts of a fragment to other banks.
        self.apart = depth + 16 // unit.size if by_depth else length + 8
        self.size = (length if by_depth else depth) * self.apart

    def at(self, side: str, k: str) -> str:
        """Return the place of the element k of a row or column."""
        down, along = (side, k) if self.by_depth else (k, side)
        return f"({down}) * {self.apart} + {along}"

    def fragments(self, number: int) -> str:
        """Return the statements that read `number` fragments of a warp, for `step` of the depth.

        They begin at ``warp_row`` or ``warp_column``. Those of b are an even number.
        """
        name, step = self.name, self.unit.depth
        first = "warp_row" if name == "a" else "warp_column"
        tile = f"{name}_tile[buffer]"
        registers = f"unsigned int {name}[{number}][{4 if name == 'a' else 2}];"
        if self.unit.size == 4:
            group, inside = "lane / 4", f"step * {step} + lane % 4"
            length = 16 if name == "a" else 8
            upper = f"{first} + f * {length} + {group}"
            halves = [upper, f"{upper} + 8"][: length // 8]
            places = [(side, k) for k in (inside, f"{inside} + 4") for side in halves]
            reads = [f"{name}[f][{r}] = {tile}[{self.at(*place)}];"
                     for r, place in enumerate(places)]  # fmt: skip
            text = " ".join(reads)
            return f"""{registers}
            #pragma unroll
            for (int f = 0; f < {number}; ++f) {{ {text} }}"""
        # Four matrices of 8 x 8; of b, those of two neighbouring fragments.
        eighth = "lane / 8 % 2 * 8", "lane / 16 * 8"
        sides, along = eighth if name == "a" else eighth[::-1]
        within = "lane % 8"
        by_depth = self.by_depth
        side = f"{first} + f * 16 + {sides}{f' + {within}' if by_depth else ''}"
        k = f"step * {step} + {along}{'' if by_depth else f' + {within}'}"
        load = f"load_matrices{'' if by_depth else '_trans'}"
        address = f"&{tile}[{self.at(side, k)}]"
        if name == "a":
            return f"""{registers}
            #pragma unroll
            for (int f = 0; f < {number}; ++f) {load}(a[f], {address});"""
        return f"""{registers}
            #pragma unroll
            for (int f = 0; f < {number // 2}; ++f) {{
                unsigned int r[4];
                {load}(r, {address});
                b[2 * f][0] = r[0]; b[2 * f][1] = r[1];
                b[2 * f + 1][0] = r[2]; b[2 * f + 1][1] = r[3];
            }}"""
