"""Compilation of kernels of elementwise operations from source to machine code, by LLVM alone.

Networks have tens of such kernels, each a few lines of arithmetic in a loop. Numba would take
0.15 s for each, most of it to find types that are evident here; this takes a fifth of that.

It supports what `chains` and `updates` write, and the functions of `vector_math`:
integers of 64 bits, arrays that `carray` makes with one axis, loops over ranges, arithmetic,
comparisons and choices. All other sources are left to Numba. Where both compile a source, values
have the same types, so that results are the same; of a choice both values are computed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

__all__ = ["machine_code"]

_WORD = ir.IntType(64)
TYPES: dict[str, ir.Type] = {
    "b1": ir.IntType(1),
    "i4": ir.IntType(32),
    "i8": _WORD,
    "u8": _WORD,
    "f4": ir.FloatType(),
    "f8": ir.DoubleType(),
}
"""LLVM's types of values, by the names of these types in a source."""

STORED = {"b1": ir.IntType(8)}
"""LLVM's types of elements in memory, where they differ from those of values."""

ARITHMETIC = {
    ast.Add: ("add", "fadd"),
    ast.Sub: ("sub", "fsub"),
    ast.Mult: ("mul", "fmul"),
    ast.Div: (None, "fdiv"),
    ast.Pow: (None, "pow"),
    ast.LShift: ("shl", None),
    ast.RShift: ("ashr", None),
    ast.BitAnd: ("and_", None),
    ast.BitOr: ("or_", None),
}
"""Methods of LLVM's builder for integers and for floats."""

COMPARISONS = {
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}

FUNCTIONS = {
    "abs": "llvm.fabs",
    "math.log": "llvm.log",
    "np.log1p": "log1p",
    "np.sqrt": "llvm.sqrt",
}
"""Functions of floats, and what LLVM or the C library calls them."""

BITS = {"bits_of": {"f4": "i4", "f8": "i8"}, "float_of": {"i4": "f4", "i8": "f8"}}
"""Functions that read the bits of a value as another type."""


_MOST_LIMITS = 3  # of a range: start, stop and step
_ARRAY_ARGUMENTS = 3  # of carray: address, shape and type
_WORDS_END = 1 << 63


class _Unknown(Exception):
    """Raised where a source has something that Numba has to compile."""


class _Value(NamedTuple):
    """A number, and the name of its type."""

    of_llvm: Any
    code: str


class _Elements(NamedTuple):
    """An array with one axis: a pointer to its first element, and the name of their type."""

    pointer: Any
    code: str


_Result = _Value | _Elements | tuple[Any, ...]


def machine_code(source: str, symbol: str, machine: Any, flags: Mapping[str, Any]) -> bytes | None:
    """Return a kernel as an object file that defines `symbol`; None where Numba has to compile it.

    Parameters
    ----------
    source : str
        It defines ``entry``; see `dnn.backend.cpu.cache.HEADER`.
    symbol : str
    machine : llvmlite.binding.TargetMachine
    flags : mapping
        How Numba would compile the functions of `vector_math`: ``FLAGS`` in a source.
    """
    tree = ast.parse(source)
    entry = tree.body[-1]
    if not isinstance(entry, ast.FunctionDef) or not hasattr(llvm, "create_pass_builder"):
        return None
    try:
        text = str(_module(entry, symbol, machine, flags))
    except _Unknown:
        return None
    module = llvm.parse_assembly(text)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = True
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


def _module(
    entry: ast.FunctionDef, symbol: str, machine: Any, flags: Mapping[str, Any]
) -> ir.Module:
    """Return the module of a kernel in LLVM's intermediate representation."""
    module = ir.Module(symbol)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    kind = ir.FunctionType(ir.VoidType(), [_WORD.as_pointer()])
    function = ir.Function(module, kind, symbol)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    (decorator,) = entry.decorator_list
    assert isinstance(decorator, ast.Call)
    options = ast.Expression(decorator.keywords[0].value)
    own = eval(compile(options, f"<{symbol}>", "eval"), {"FLAGS": flags})
    body = _Body(builder, own["fastmath"], flags["fastmath"])
    body.names["r"] = _Elements(function.args[0], "i8")
    body.statements(entry.body)
    builder.ret_void()
    return module


class _Body:
    """Writes the statements of one function.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
    flags, inner_flags : collection of str
        What LLVM may do to arithmetic of floats, here and in functions that are called.
    constants : mapping of str to object, optional
        Values of names that are not variables, in a function of `vector_math`. If left out, the
        function is the kernel itself, whose variables have a place in memory, since loops change
        them; LLVM makes registers of them.
    """

    def __init__(
        self,
        builder: Any,
        flags: Collection[str],
        inner_flags: Collection[str],
        constants: Mapping[str, object] | None = None,
    ) -> None:
        self.builder = builder
        self.flags = tuple(sorted(flags))
        self.inner_flags = inner_flags
        self.constants = constants or {}
        self.keeps_variables = constants is None
        self.names: dict[str, _Result] = {}
        self.places: dict[str, _Value] = {}

    # -- statements -------------------------------------------------------------------------------

    def statements(self, statements: Sequence[ast.stmt]) -> _Result | None:
        """Write statements; return the value that the function returns, if it does."""
        for statement in statements:
            if isinstance(statement, ast.Return) and statement.value is not None:
                return self.expression(statement.value)
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self._assign(statement.targets[0], self.expression(statement.value))
            elif isinstance(statement, ast.For) and not statement.orelse:
                self._loop(statement)
            elif not _is_docstring(statement):
                raise _Unknown(type(statement).__name__)
        return None

    def _assign(self, target: ast.expr, found: _Result) -> None:
        if isinstance(target, ast.Tuple):
            if not isinstance(found, tuple) or isinstance(found, _Value | _Elements):
                raise _Unknown("a tuple of something else")
            if len(target.elts) != len(found):
                raise _Unknown("a tuple of another length")
            for element, item in zip(target.elts, found, strict=True):
                self._assign(element, item)
        elif isinstance(target, ast.Subscript):
            elements, at = self._element(target)
            if not isinstance(found, _Value) or found.code != elements.code:
                raise _Unknown("an element of another type")
            value = found.of_llvm
            if found.code in STORED:
                value = self.builder.zext(value, STORED[found.code])
            self.builder.store(value, at)
        elif not isinstance(target, ast.Name):
            raise _Unknown(type(target).__name__)
        elif self.keeps_variables and isinstance(found, _Value):
            self._keep(target.id, found)
        else:
            self.names[target.id] = found

    def _keep(self, name: str, value: _Value) -> None:
        """Write a variable to its place."""
        if name not in self.places:
            with self.builder.goto_entry_block():
                place = self.builder.alloca(TYPES[value.code])
            self.places[name] = _Value(place, value.code)
        place = self.places[name]
        if place.code != value.code:
            raise _Unknown("a variable of two types")
        self.builder.store(value.of_llvm, place.of_llvm)

    def _loop(self, loop: ast.For) -> None:
        """Write a loop over a range, which tests at the end of a pass if there is another one."""
        over, target = loop.iter, loop.target
        if not isinstance(target, ast.Name) or not isinstance(over, ast.Call):
            raise _Unknown("a loop")
        if ast.unparse(over.func) != "range" or not 1 <= len(over.args) <= _MOST_LIMITS:
            raise _Unknown("a loop over something else")
        limits = [self._value(limit, "i8") for limit in over.args]
        start = limits[0] if len(limits) > 1 else _WORD(0)
        stop = limits[min(1, len(limits) - 1)]
        step = limits[2] if len(limits) > 2 else _WORD(1)
        if not isinstance(step, ir.Constant) or step.constant <= 0:
            raise _Unknown("a step that may go down")
        builder = self.builder
        before = builder.block
        inside, after = builder.append_basic_block(), builder.append_basic_block()
        builder.cbranch(builder.icmp_signed("<", start, stop), inside, after)
        builder.position_at_end(inside)
        index = builder.phi(_WORD)
        index.add_incoming(start, before)
        outside = {name: found for name, found in self.names.items() if name != target.id}
        self.places.pop(target.id, None)
        self.names[target.id] = _Value(index, "i8")
        self.statements(loop.body)
        if any(self.names[name] is not found for name, found in outside.items()):
            raise _Unknown("an array that changes from pass to pass")
        # Names that were defined inside may be undefined after the loop.
        self.names = outside
        self.places.pop(target.id, None)
        following = builder.add(index, step, flags=("nsw",))
        index.add_incoming(following, builder.block)
        builder.cbranch(builder.icmp_signed("<", following, stop), inside, after)
        builder.position_at_end(after)

    # -- expressions ------------------------------------------------------------------------------

    def expression(self, node: ast.expr) -> _Result:
        """Write an expression; return its value: a number, an array or a tuple."""
        writer = self._WRITERS.get(type(node))
        if writer is None:
            raise _Unknown(type(node).__name__)
        return writer(self, node)

    def value(self, node: ast.expr) -> _Value:
        """Write an expression that has to be a number, and return it."""
        found = self.expression(node)
        if not isinstance(found, _Value):
            raise _Unknown("an array where a number is expected")
        return found

    def _value(self, node: ast.expr, code: str) -> Any:
        """Write an expression that has to be a number of a type; return LLVM's value."""
        value = self.value(node)
        if value.code != code:
            raise _Unknown(f"a number that is not {code}")
        return value.of_llvm

    def _name(self, node: Any) -> _Result:
        if node.id in self.places:
            place = self.places[node.id]
            return _Value(self.builder.load(place.of_llvm), place.code)
        if node.id in self.names:
            return self.names[node.id]
        if node.id in self.constants:
            return _constant(self.constants[node.id])
        raise _Unknown(node.id)

    def _number(self, node: Any) -> _Result:
        if type(node.value) is not int or node.value >= _WORDS_END:
            raise _Unknown("a number without a type")
        return _Value(_WORD(node.value), "i8")

    def _tuple(self, node: Any) -> _Result:
        return tuple(self.expression(each) for each in node.elts)

    def _element(self, node: ast.Subscript) -> tuple[_Elements, Any]:
        """Return an array, and the pointer to one of its elements."""
        elements = self.expression(node.value)
        if not isinstance(elements, _Elements):
            raise _Unknown("an index of something else")
        if isinstance(node.slice, ast.UnaryOp):
            raise _Unknown("an index from the end")
        index = self._value(node.slice, "i8")
        return elements, self.builder.gep(elements.pointer, [index], inbounds=True)

    def _subscript(self, node: Any) -> _Result:
        if isinstance(node.value, ast.Name) and node.value.id in self.constants:
            many, index = self.constants[node.value.id], node.slice
            if isinstance(many, tuple) and isinstance(index, ast.Constant):
                return _constant(many[int(ast.unparse(index))])
        elements, at = self._element(node)
        value = self.builder.load(at)
        if elements.code in STORED:
            value = self.builder.icmp_unsigned("!=", value, value.type(0))
        return _Value(value, elements.code)

    def _unary(self, node: Any) -> _Result:
        operand = self.value(node.operand)
        if isinstance(node.op, ast.Not) and operand.code == "b1":
            return _Value(self.builder.not_(operand.of_llvm), "b1")
        if isinstance(node.op, ast.USub) and operand.code in ("f4", "f8"):
            return _Value(self.builder.fneg(operand.of_llvm, flags=self.flags), operand.code)
        if isinstance(node.op, ast.USub) and operand.code == "i8":
            return _Value(self.builder.neg(operand.of_llvm), operand.code)
        if isinstance(node.op, ast.USub) and operand.code == "i4":
            return _Value(self.builder.neg(self._cast(operand, "i8").of_llvm), "i8")
        raise _Unknown("an operator")

    def _alike(self, a: _Value, b: _Value) -> tuple[_Value, _Value]:
        """Return two operands in the type in which Numba computes with them."""
        codes = {a.code, b.code}
        if codes <= {"i4", "i8"}:
            return self._cast(a, "i8"), self._cast(b, "i8")
        if codes == {"f4", "f8"}:
            return self._cast(a, "f8"), self._cast(b, "f8")
        if len(codes) == 1:
            return a, b
        raise _Unknown("operands of different types")

    def _binary(self, node: Any) -> _Result:
        a, b = self._alike(self.value(node.left), self.value(node.right))
        of_integers, of_floats = ARITHMETIC.get(type(node.op), (None, None))
        if a.code in ("f4", "f8") and of_floats == "pow":
            return _Value(self._float_function("llvm.pow", a, b), a.code)
        if a.code in ("f4", "f8") and of_floats is not None:
            write = getattr(self.builder, of_floats)
            return _Value(write(a.of_llvm, b.of_llvm, flags=self.flags), a.code)
        wraps = of_integers in ("add", "sub", "mul")
        if of_integers is not None and (a.code == "i8" or (a.code == "u8" and wraps)):
            return _Value(getattr(self.builder, of_integers)(a.of_llvm, b.of_llvm), a.code)
        raise _Unknown("an operator")

    def _compare(self, node: Any) -> _Result:
        if len(node.ops) != 1 or type(node.ops[0]) not in COMPARISONS:
            raise _Unknown("a comparison")
        a, b = self._alike(self.value(node.left), self.value(node.comparators[0]))
        symbol = COMPARISONS[type(node.ops[0])]
        if a.code in ("f4", "f8"):
            # NaN differs from everything.
            unordered = symbol == "!="
            write = self.builder.fcmp_unordered if unordered else self.builder.fcmp_ordered
            return _Value(write(symbol, a.of_llvm, b.of_llvm, flags=self.flags), "b1")
        if a.code != "i8":
            raise _Unknown("a comparison of such types")
        return _Value(self.builder.icmp_signed(symbol, a.of_llvm, b.of_llvm), "b1")

    def _all_or_any(self, node: Any) -> _Result:
        write = self.builder.and_ if isinstance(node.op, ast.And) else self.builder.or_
        first, *rest = (self._value(each, "b1") for each in node.values)
        for each in rest:
            first = write(first, each)
        return _Value(first, "b1")

    def _choice(self, node: Any) -> _Result:
        condition = self._value(node.test, "b1")
        a, b = self.value(node.body), self.value(node.orelse)
        if a.code != b.code:
            raise _Unknown("a choice of two types")
        chosen = self.builder.select(condition, a.of_llvm, b.of_llvm)
        # Frozen: of an element that is loaded, and stored again if it is chosen, LLVM would make a
        # store under a mask, which takes six times as long on AMD's processors without AVX-512.
        block = self.builder.block
        frozen = ir.instructions.Instruction(block, chosen.type, "freeze", [chosen])
        block.instructions.append(frozen)
        self.builder.position_at_end(block)
        return _Value(frozen, a.code)

    # -- calls ------------------------------------------------------------------------------------

    def _call(self, node: Any) -> _Result:
        name = ast.unparse(node.func)
        arguments = node.args
        if node.keywords:
            raise _Unknown("an argument by name")
        module, _, function = name.rpartition(".")
        own = self.constants.get(function) if not module and name not in BITS else None
        if module == "vector_math" or isinstance(own, ast.FunctionDef):
            return self._inlined(function, [self.expression(each) for each in arguments])
        if len(arguments) != (_ARRAY_ARGUMENTS if name == "carray" else 1):
            raise _Unknown(f"{len(arguments)} arguments")
        if name in TYPES:
            return self._typed(name, arguments[0])
        if name == "pointer":
            return self.value(arguments[0])
        if name == "carray":
            return self._array(*arguments)
        if name == "intrinsics.scratch" and isinstance(arguments[0], ast.Constant):
            with self.builder.goto_entry_block():
                place = self.builder.alloca(ir.IntType(8), arguments[0].value)
            place.align = 64
            return _Value(self.builder.ptrtoint(place, _WORD), "i8")
        if name in BITS:
            value = self.value(arguments[0])
            if value.code not in BITS[name]:
                raise _Unknown(name)
            code = BITS[name][value.code]
            return _Value(self.builder.bitcast(value.of_llvm, TYPES[code]), code)
        value = self.value(arguments[0])
        if name not in FUNCTIONS or value.code not in ("f4", "f8"):
            raise _Unknown(name)
        return _Value(self._float_function(FUNCTIONS[name], value), value.code)

    def _float_function(self, name: str, *operands: _Value) -> Any:
        """Call a function of LLVM's, or one of the C library, of floats of one type."""
        kind, module = TYPES[operands[0].code], self.builder.module
        function = ir.FunctionType(kind, [kind] * len(operands))
        if name.startswith("llvm."):
            called = module.declare_intrinsic(name, [kind], function)
        else:
            name += "f" if operands[0].code == "f4" else ""
            called = module.globals.get(name) or ir.Function(module, function, name)
        arguments = [operand.of_llvm for operand in operands]
        return self.builder.call(called, arguments, fastmath=self.flags)

    def _typed(self, code: str, node: ast.expr) -> _Value:
        """Return a literal as a number of a type, or another expression cast to it."""
        negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        number = node.operand if negative else node  # type: ignore[attr-defined]
        if not isinstance(number, ast.Constant):
            return self._cast(self.value(node), code)
        if not isinstance(number.value, int | float):
            raise _Unknown("a number of something else")
        literal = -number.value if negative else number.value
        try:
            return _constant(np.dtype(code if code != "b1" else "?").type(literal))
        except (OverflowError, ValueError):
            raise _Unknown("a number that its type cannot hold") from None

    def _cast(self, value: _Value, code: str) -> _Value:
        number, kind = value.of_llvm, TYPES[code]
        pair = value.code, code
        if value.code == code or {*pair} == {"i8", "u8"}:
            return _Value(number, code)
        if pair == ("i4", "i8"):
            return _Value(self.builder.sext(number, kind), code)
        if pair == ("i8", "i4"):
            return _Value(self.builder.trunc(number, kind), code)
        if pair == ("f4", "f8"):
            return _Value(self.builder.fpext(number, kind), code)
        if pair == ("f8", "f4"):
            return _Value(self.builder.fptrunc(number, kind), code)
        if code in ("f4", "f8") and value.code in ("i4", "i8"):
            return _Value(self.builder.sitofp(number, kind), code)
        if code in ("f4", "f8") and value.code in ("u8", "b1"):
            return _Value(self.builder.uitofp(number, kind), code)
        raise _Unknown(f"{value.code} as {code}")

    def _array(self, address: ast.expr, shape: ast.expr, code: ast.expr) -> _Elements:
        name = ast.unparse(code)
        if name not in TYPES or not isinstance(shape, ast.Tuple) or len(shape.elts) != 1:
            raise _Unknown("an array")
        kind = STORED.get(name, TYPES[name])
        start = self._value(address, "i8")
        return _Elements(self.builder.inttoptr(start, kind.as_pointer()), name)

    def _inlined(self, name: str, arguments: Sequence[_Result]) -> _Result:
        """Write a function of `vector_math` where it is called."""
        names = _vector_math()
        definition = names.get(name)
        if not isinstance(definition, ast.FunctionDef):
            raise _Unknown(name)
        body = _Body(self.builder, self.inner_flags, self.inner_flags, names)
        parameters = [parameter.arg for parameter in definition.args.args]
        if len(parameters) != len(arguments):
            raise _Unknown(f"{len(arguments)} arguments")
        body.names.update(zip(parameters, arguments, strict=True))
        returned = body.statements(definition.body)
        if returned is None:
            raise _Unknown(f"{name} returns nothing")
        return returned

    _WRITERS: Mapping[type[ast.expr], Callable[[Any, Any], _Result]] = {
        ast.Name: _name,
        ast.Constant: _number,
        ast.Tuple: _tuple,
        ast.Subscript: _subscript,
        ast.UnaryOp: _unary,
        ast.BinOp: _binary,
        ast.Compare: _compare,
        ast.BoolOp: _all_or_any,
        ast.IfExp: _choice,
        ast.Call: _call,
    }


def _constant(number: object) -> _Value:
    """Return a NumPy number as a constant."""
    if isinstance(number, np.bool_):
        return _Value(TYPES["b1"](int(number)), "b1")
    if isinstance(number, np.floating):
        return _Value(TYPES[number.dtype.str[1:]](float(number)), number.dtype.str[1:])
    if isinstance(number, np.integer):
        return _Value(TYPES[number.dtype.str[1:]](int(number)), number.dtype.str[1:])
    raise _Unknown("a constant without a type")


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


@cache
def _vector_math() -> dict[str, object]:
    """Return the constants of `vector_math`, and the definitions of its functions.

    The file is parsed, since importing it would import Numba.
    """
    tree = ast.parse(Path(__file__).with_name("vector_math.py").read_text(encoding="utf-8"))
    plain: list[ast.stmt] = [x for x in tree.body if isinstance(x, ast.Import | ast.Assign)]
    names: dict[str, object] = {}
    exec(compile(ast.Module(plain, []), "vector_math.py", "exec"), names)
    return names | {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
