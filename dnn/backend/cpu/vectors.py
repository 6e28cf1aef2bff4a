"""Instructions on vector registers, as kernels with explicit vectors write them.

Imported when something is compiled, and only then: see `cache`.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils

from dnn.backend.cpu.registers import lanes_of

__all__ = ["NUMBERS", "WORD", "Vectors"]

WORD, _INDEX = ir.IntType(64), ir.IntType(32)
CONTRACT = ("contract",)
NUMBERS = {"f4": (ir.FloatType(), types.float32, 4), "f8": (ir.DoubleType(), types.float64, 8)}
"""For each code the type of LLVM, that of Numba, and the bytes."""


class Vectors:
    """Writes LLVM instructions on vectors of one type of elements."""

    def __init__(self, code, builder):
        self.element, _, self.item = NUMBERS[code]
        self.lanes = lanes_of(code)
        self.type = ir.VectorType(self.element, self.lanes)
        self.builder = builder
        self.bytes = self.lanes * self.item

    def address(self, base, *terms):
        """Return base + sum of (number, factor)."""
        for number, factor in terms:
            factor = WORD(factor) if isinstance(factor, int) else factor
            base = self.builder.add(base, self.builder.mul(number, factor))
        return base

    def place(self, address, kind=None):
        """Return a pointer to a vector, or to another type."""
        return self.builder.inttoptr(address, (kind or self.type).as_pointer())

    def splat(self, value):
        """Return a vector with one element in all lanes."""
        undefined = ir.Constant(self.type, ir.Undefined)
        one = self.builder.insert_element(undefined, value, _INDEX(0))
        zeros = ir.Constant(ir.VectorType(_INDEX, self.lanes), None)
        return self.builder.shuffle_vector(one, undefined, zeros)

    def number(self, address):
        """Load one element from an address."""
        return self.builder.load(self.place(address, self.element))

    def words(self, value):
        """Return a vector with one integer of 64 bits in all lanes."""
        kind = ir.VectorType(WORD, self.lanes)
        undefined = ir.Constant(kind, ir.Undefined)
        one = self.builder.insert_element(undefined, value, _INDEX(0))
        zeros = ir.Constant(ir.VectorType(_INDEX, self.lanes), None)
        return self.builder.shuffle_vector(one, undefined, zeros)

    def count(self):
        """Return the numbers of the lanes."""
        return ir.Constant(ir.VectorType(WORD, self.lanes), list(range(self.lanes)))

    def mask(self, left):
        """Return a mask of the lanes before an end that is `left` elements away."""
        return self.builder.icmp_signed("<", self.count(), self.words(left))

    def load(self, address, mask=None, other=None):
        """Load neighbouring elements; lanes outside of a mask are `other`, 0 if left out."""
        place = self.place(address)
        if mask is None:
            return self.builder.load(place, align=self.item)
        kind = ir.FunctionType(self.type, [place.type, _INDEX, mask.type, self.type])
        name = f"llvm.masked.load.{self._suffix()}.p0"
        load = cgutils.get_or_insert_function(self.builder.module, kind, name)
        other = ir.Constant(self.type, None) if other is None else other
        return self.builder.call(load, [place, _INDEX(self.item), mask, other])

    def places(self, address, step):
        """Return pointers to elements that lie `step` bytes apart."""
        along = self.builder.mul(self.words(step), self.count())
        addresses = self.builder.add(self.words(address), along)
        return self.builder.inttoptr(
            addresses, ir.VectorType(self.element.as_pointer(), self.lanes)
        )

    def gather(self, places, mask, other):
        """Load elements from pointers; lanes outside of a mask are `other`."""
        kind = ir.FunctionType(self.type, [places.type, _INDEX, mask.type, self.type])
        name = f"llvm.masked.gather.{self._suffix()}.v{self.lanes}p0"
        load = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(load, [places, _INDEX(self.item), mask, other])

    def scatter(self, values, places, mask):
        """Store the elements in a mask at pointers, which all differ."""
        kind = ir.FunctionType(ir.VoidType(), [self.type, places.type, _INDEX, mask.type])
        name = f"llvm.masked.scatter.{self._suffix()}.v{self.lanes}p0"
        store = cgutils.get_or_insert_function(self.builder.module, kind, name)
        self.builder.call(store, [values, places, _INDEX(self.item), mask])

    def store(self, values, address, mask=None):
        """Store neighbouring elements, only those in a mask if there is one."""
        place = self.place(address)
        if mask is None:
            self.builder.store(values, place, align=self.item)
            return
        kind = ir.FunctionType(ir.VoidType(), [self.type, place.type, _INDEX, mask.type])
        name = f"llvm.masked.store.{self._suffix()}.p0"
        store = cgutils.get_or_insert_function(self.builder.module, kind, name)
        self.builder.call(store, [values, place, _INDEX(self.item), mask])

    def total(self, values):
        """Return the sum of the lanes, in an order that depends on their number alone."""
        kind = ir.FunctionType(self.element, [self.element, self.type])
        name = f"llvm.vector.reduce.fadd.{self._suffix()}"
        add = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(add, [self.element(0), values], fastmath=("reassoc",))

    def multiply_add(self, total, a, b):
        """Add ``a b`` to a variable."""
        product = self.builder.fmul(a, b, flags=CONTRACT)
        added = self.builder.fadd(self.builder.load(total), product, flags=CONTRACT)
        self.builder.store(added, total)

    def variables(self, *lengths):
        """Return nested lists, of these lengths, of vector variables, which become registers."""
        if not lengths:
            return cgutils.alloca_once(self.builder, self.type)
        return [self.variables(*lengths[1:]) for _ in range(lengths[0])]

    def _suffix(self):
        return f"v{self.lanes}f{8 * self.item}"
