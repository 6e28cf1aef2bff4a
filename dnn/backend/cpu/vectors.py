"""Instructions on vector registers, as kernels with explicit vectors write them.

Imported when something is compiled, and only then: see `cache`.
"""

# Numba infers the types of what it compiles.
# mypy: disallow_untyped_defs=False, disallow_untyped_calls=False
# mypy: disallow_untyped_decorators=False

from __future__ import annotations

import math

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from dnn.backend.cpu.registers import lanes_of

__all__ = ["FAST", "NUMBERS", "WORD", "Vectors", "emitted", "load_word", "store_zeros"]

WORD, _INDEX = ir.IntType(64), ir.IntType(32)
CONTRACT = ("contract",)
FAST = ("contract", "nsz")
"""Flags of arithmetic: a multiplication and an addition may be one instruction."""
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
        """Return a vector with one value, an element or an integer of 64 bits, in all lanes."""
        undefined = ir.Constant(ir.VectorType(value.type, self.lanes), ir.Undefined)
        one = self.builder.insert_element(undefined, value, _INDEX(0))
        zeros = ir.Constant(ir.VectorType(_INDEX, self.lanes), None)
        return self.builder.shuffle_vector(one, undefined, zeros)

    def number(self, address):
        """Load one element from an address."""
        return self.builder.load(self.place(address, self.element))

    def count(self):
        """Return the numbers of the lanes."""
        return ir.Constant(ir.VectorType(WORD, self.lanes), list(range(self.lanes)))

    def mask(self, left):
        """Return a mask of the lanes before an end that is `left` elements away."""
        return self.builder.icmp_signed("<", self.count(), self.splat(left))

    def parts(self, number, left=None):
        """Return byte offset and mask of each of neighbouring vectors, up to an end in elements."""
        masks = [
            None if left is None else self.mask(self.builder.sub(left, WORD(i * self.lanes)))
            for i in range(number)
        ]
        return [(WORD(i * self.bytes), mask) for i, mask in enumerate(masks)]

    def at_least(self, is_bound, values):
        """Return values, or 0 where they are less and an integer is not 0; NaN stays."""
        zero, least = self.element(0), self.element(-math.inf)
        is_set = self.builder.icmp_signed("!=", is_bound, WORD(0))
        floor = self.splat(self.builder.select(is_set, zero, least))
        below = self.builder.fcmp_ordered(">", floor, values)
        return self.builder.select(below, floor, values)

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
        along = self.builder.mul(self.splat(step), self.count())
        addresses = self.builder.add(self.splat(address), along)
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


def load_word(builder, address):
    """Load an integer of 64 bits from an address."""
    return builder.load(builder.inttoptr(address, WORD.as_pointer()))


def emitted(writer, code, *sizes):
    """Return the function of kernels whose instructions a class writes.

    Parameters
    ----------
    writer : class
        Called with `Vectors`, two named tuples and `sizes`; ``write`` writes the instructions.
    code : str
        Type of elements.

    Returns
    -------
    intrinsic
        Takes a named tuple of integers, what changes from call to call, and the fields of the
        kernel. `writer` gets the values of LLVM: all of the first, and the fields that
        ``writer.reads`` names.
    """

    @intrinsic
    def emit(context, at, fields):
        def generate(context, builder, signature, arguments):
            at_values = cgutils.unpack_tuple(builder, arguments[0])
            start = builder.ptrtoint(arguments[1], WORD)
            read = writer.reads(
                *(
                    load_word(builder, builder.add(start, WORD(fields.offset(name))))
                    for name in writer.reads._fields
                )
            )
            v = Vectors(code, builder)
            writer(v, at.instance_class(*at_values), read, *sizes).write()
            return context.get_dummy_value()

        return types.void(at, fields), generate

    return emit


def store_zeros(code):
    """Return the function of kernels that stores zeros in a vector, up to an end in elements."""

    @intrinsic
    def store(context, start, left):
        def generate(context, builder, signature, arguments):
            start, left = arguments
            v = Vectors(code, builder)
            v.store(ir.Constant(v.type, None), start, v.mask(left))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return store
