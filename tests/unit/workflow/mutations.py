"""Workflow files that somebody, or a disk, has spoilt: from good ones, the same every time."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

_TOKEN = re.compile(r'"[^"\n]*"|[A-Za-z_][\w-]*|-?\d[\w.]*|\[\[|\]\]|[^\s\w]|\n')
_VALUE = re.compile(r'(?<== )("[^"\n]*"|-?[\w.]+|\[[^\[\]\n]*\])')
_KEY = re.compile(r"^\s*([A-Za-z_]\w*)\s*=", re.MULTILINE)

# What people write by mistake, and what programs trip over.
VALUES = (
    *("0", "1", "-1", "2.5", "true", "false", "1e400", "nan", "-inf", "0x10", "1_000", "9" * 30),
    *(str(2**24), str(2**24 + 1), str(2**63), "2026-11-21", "12:00:00", "2026-11-21T12:00:00Z"),
    *('""', '" "', '"x"', '"fill"', '"spread"', '"stop"', '"2 GiB"', '"-1 GiB"', '"1 fortnight"'),
    *('"10 min"', '"a/b"', '"../.."', '"/"', '"."', '"{copy}"', '"{"', '"{{}}"', '"\\u0000"'),
    *('"' + "x" * 300 + '"', '"g"', '"m"', '"./nowhere.py:run"', '"nowhere:run"', '"os:getcwd"'),
    *('"modules.master:run"', '"sh"', '["sh"]', '["sh", "-c", "{copies}"]', '[""]', "[]", "[[]]"),
    *("{}", "[1]", "[[1, 2]]", "[[0, 1], [0, 1]]", '["a", 1]', "{ a = 1 }", "[" * 150 + "]" * 150),
    *("{ a.b = [{ c = 1 }] }", "'''\n'''", "", "# nothing", "= 1", '"unended'),
    # Odd types, and what is deep or huge.
    *("0o17", "0b1", "+0", "-0.0", "1e-400", "inf", "00:00:00.000000001", "0001-01-01", "24:00:00"),
    *("[true, 1]", "[1979-05-27]", "[[], {}]", '{ "" = "" }', "{ a = nan }", '"""\\\n  x"""'),
    *("{ a = " * 30 + "1" + " }" * 30, "{ a = " * 90 + "1" + " }" * 90, "[" * 62 + "]" * 62),
    *("9" * 5000, "0." + "1" * 5000, '"' + "é" * 100 + '"', '"' + "x" * 100_000 + '"'),
    *('"\u202e"', '"\\u001b[31m"', '"\U0010ffff"', '"e\u0301"', '"ﬁ"', '"名前"'),
)
_KEYS = (
    *(
        "name",
        "function",
        "executable",
        "launcher",
        "directory",
        "environment",
        "stdin",
        "tasks",
        "options",
    ),
    *("processes", "copies", "threads", "gpus", "placement", "on_failure", "retries", "time_limit"),
    *("modules", "groups", "depends", "iterations", "until", "servers", "memory", "when_full"),
    *("spill", "dtype", "shape", "owners", "readers", "section", "split", "module", "copy", "rank"),
)
_ODD_KEYS = (
    *("a." * 30 + "a", "a." * 3000 + "a", '"' + "k" * 100_000 + '"', '""', "''", "näme", '"名前"'),
    *(
        '"\\u0000"',
        '"a.b"',
        "options.a.b.c",
        "1.2",
        "-",
        "true",
        "inf",
        '"\\u202e"',
        '"new\\nline"',
    ),
)
_ENCODINGS = ("utf-16", "utf-16-le", "utf-32", "utf-7", "utf-8-sig", "cp1252", "cp037", "shift_jis")
_BYTES = (b"\x00", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\r", b"\t", b'"', b"\\", b"[", b"]", b"=")


def mutated(good: str, seed: int) -> bytes:
    """Return a file with one to three things changed.

    Parameters
    ----------
    good : str
    seed : int
        The same one gives the same file.
    """
    draw = random.Random(seed)
    text = good
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        text = draw.choice(_MUTATIONS)(text, draw)
    damage = draw.random()
    if damage < 0.03:
        return text.encode(draw.choice(_ENCODINGS), errors="replace")
    data = text.encode()
    if damage < 0.25:
        for _ in range(draw.choice((1, 1, 2, 10))):
            data = draw.choice(_DAMAGE)(data, draw)
    return data


# -- of bytes: what disks and transfers do --------------------------------------------------------


def _put_in_a_byte(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data) + 1)
    return data[:place] + draw.choice(_BYTES) + data[place + draw.randrange(2) :]


def _flip_a_bit(data: bytes, draw: random.Random) -> bytes:
    if not data:
        return data
    place = draw.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << draw.randrange(8)]) + data[place + 1 :]


def _blank_a_block(data: bytes, draw: random.Random) -> bytes:
    """A block that was never written, or holds what was there before."""
    start, length = draw.randrange(len(data) + 1), draw.choice((4, 64, 512))
    block = draw.choice((bytes(length), draw.randbytes(length)))
    return data[:start] + block + data[start + length :]


def _lose_a_block(data: bytes, draw: random.Random) -> bytes:
    start = draw.randrange(len(data) + 1)
    return data[:start] + data[start + draw.choice((1, 16, 256)) :]


def _move_a_block(data: bytes, draw: random.Random) -> bytes:
    one, other, third = sorted(draw.randrange(len(data) + 1) for _ in range(3))
    return data[:one] + data[other:third] + data[one:other] + data[third:]


_DAMAGE = (
    _put_in_a_byte,
    _put_in_a_byte,
    _flip_a_bit,
    _blank_a_block,
    _lose_a_block,
    _move_a_block,
)


# -- of text: what people do ----------------------------------------------------------------------


def _change_a_value(text: str, draw: random.Random) -> str:
    return _change(_VALUE, text, draw, lambda _: draw.choice(VALUES))


def _swap_two_values(text: str, draw: random.Random) -> str:
    values = [found[0] for found in _VALUE.finditer(text)]
    return _change(_VALUE, text, draw, lambda _: draw.choice(values))


def _misspell_a_key(text: str, draw: random.Random) -> str:
    def misspelt(word: str) -> str:
        place = draw.randrange(len(word))
        return draw.choice((word[:place] + word[place + 1 :], word + word[place], word.upper()))

    return _change(_KEY, text, draw, misspelt, part=1)


def _change_a_key(text: str, draw: random.Random) -> str:
    return _change(_KEY, text, draw, lambda _: draw.choice(_KEYS), part=1)


def _add_a_key(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    lines.insert(draw.randrange(len(lines) + 1), f"{draw.choice(_KEYS)} = {draw.choice(VALUES)}")
    return "\n".join(lines)


def _add_an_odd_key(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    key = draw.choice(_ODD_KEYS)
    line = draw.choice((f"{key} = {draw.choice(VALUES)}", f"[{key}]", f"[[module.options.{key}]]"))
    lines.insert(draw.randrange(len(lines) + 1), line)
    return "\n".join(lines)


def _change_a_token(text: str, draw: random.Random) -> str:
    tokens = [found[0] for found in _TOKEN.finditer(text)]
    return _change(
        _TOKEN, text, draw, lambda word: draw.choice((word * 2, "", draw.choice(tokens)))
    )


def _delete_lines(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    start = draw.randrange(len(lines))
    del lines[start : start + draw.randint(1, 3)]
    return "\n".join(lines)


def _repeat_lines(text: str, draw: random.Random) -> str:
    lines = text.split("\n")
    start, place = draw.randrange(len(lines)), draw.randrange(len(lines) + 1)
    lines[place:place] = lines[start : start + draw.randint(1, 4)]
    return "\n".join(lines)


def _cut_off(text: str, draw: random.Random) -> str:
    return text[: draw.randrange(len(text) + 1)]


def _change(
    pattern: re.Pattern[str],
    text: str,
    draw: random.Random,
    change: Callable[[str], str],
    part: int = 0,
) -> str:
    found = list(pattern.finditer(text))
    if not found:
        return text
    one = draw.choice(found)
    return text[: one.start(part)] + change(one[part]) + text[one.end(part) :]


_MUTATIONS = (
    *(_change_a_value, _change_a_value, _swap_two_values, _misspell_a_key, _change_a_key),
    *(_add_a_key, _add_an_odd_key, _change_a_token, _delete_lines, _repeat_lines, _cut_off),
)
