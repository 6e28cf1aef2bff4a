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
)
_KEYS = (
    *("name", "function", "executable", "launcher", "directory", "environment", "stdin", "options"),
    *("processes", "copies", "threads", "gpus", "placement", "on_failure", "retries", "time_limit"),
    *("modules", "groups", "depends", "iterations", "until", "servers", "memory", "when_full"),
    *("spill", "dtype", "shape", "owners", "readers", "section", "split", "module", "copy", "rank"),
)
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
    data = text.encode()
    return _spoil_bytes(data, draw) if draw.random() < 0.1 else data


def _spoil_bytes(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data) + 1)
    return data[:place] + draw.choice(_BYTES) + data[place + draw.randrange(2) :]


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
    *(_add_a_key, _change_a_token, _delete_lines, _repeat_lines, _cut_off),
)
