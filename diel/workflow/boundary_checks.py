"""What is wrong with boundaries that are valid by themselves: parts, modules and groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from diel.errors import Problem
from diel.workflow.boundary import Boundary, Part
from diel.workflow.model import Module
from diel.workflow.nearest import did_you_mean
from diel.workflow.sections import intersection, outside, show_box, whole
from diel.workflow.wording import show


def check_boundaries(
    boundaries: Sequence[tuple[int, Boundary]],
    document: Mapping[str, Any],
    modules: Mapping[str, Module],
    unsure: set[str],
) -> list[Problem]:
    """Find what is wrong with boundaries that are valid by themselves.

    Parameters
    ----------
    boundaries : sequence of (int, Boundary)
        Each with its index in the file.
    document : mapping
        The file as TOML reads it.
    modules : mapping of str to Module
        The valid ones, by name.
    unsure : set of str
        Of ``module`` and ``group``, those whose table is misspelt or has a wrong shape.
    """
    names = _names(document.get("module"))
    known = None if names is None or "module" in unsure else names
    problems: list[Problem] = []
    first: dict[str, int] = {}
    for index, boundary in boundaries:
        path = f"boundary[{index}]"
        if first.setdefault(boundary.name, index) != index:
            text = f'boundary[{first[boundary.name]}] is called "{boundary.name}" too'
            problems.append(Problem(f"{path}.name", text, "give each its own name"))
        parts = [
            problem
            for place, part in _parts(boundary, path)
            for problem in (
                *_check_geometry(part, boundary, place),
                *_check_people(part, place, known, modules),
            )
        ]
        problems += parts or [
            *_check_owners(boundary, path, modules),
            *_check_readers(boundary, path),
            *_check_group(boundary, path, document, unsure),
        ]
    return problems


def _names(entries: Any) -> list[str] | None:
    """Return the names of entries, None if one cannot be known."""
    if not isinstance(entries, list):
        return None
    names = [entry.get("name") if isinstance(entry, dict) else None for entry in entries]
    return [str(name) for name in names] if all(isinstance(one, str) for one in names) else None


def _parts(boundary: Boundary, path: str) -> Iterator[tuple[str, Part]]:
    for kind in ("owners", "readers"):
        for position, part in enumerate(getattr(boundary, kind)):
            yield f"{path}.{kind}[{position}]", part


def _check_geometry(part: Part, boundary: Boundary, path: str) -> Iterator[Problem]:
    axes = len(boundary.shape)
    if part.split is not None and part.split >= axes:
        yield Problem(
            f"{path}.split",
            f'there is no axis {part.split}: "{boundary.name}" has {_axes(axes)}, from 0',
            f"for example split = {axes - 1}",
        )
    if part.section is None:
        return
    if len(part.section) != axes:
        yield Problem(
            f"{path}.section",
            f'has {_counted(len(part.section), "range")}, and "{boundary.name}" has {_axes(axes)}',
            f"write a range for each, as in section = {show_box(whole(boundary.shape))}",
        )
        return
    for axis, ((start, stop), length) in enumerate(zip(part.section, boundary.shape, strict=True)):
        if stop > length:
            yield Problem(
                f"{path}.section[{axis}]",
                f"[{start}, {stop}] goes beyond axis {axis}, whose length is {length}",
                f"{length} is the largest that a range can end with",
            )


def _axes(count: int) -> str:
    return "1 axis" if count == 1 else f"{count} axes"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


def _check_people(
    part: Part, path: str, known: Sequence[str] | None, modules: Mapping[str, Module]
) -> Iterator[Problem]:
    if known is not None and part.module not in known:
        near = did_you_mean(part.module, known)
        hint = f'did you mean "{near}"?' if near else f"the file has {', '.join(known)}"
        yield Problem(f"{path}.module", f"there is no module {show(part.module)}", hint)
    module = modules.get(part.module)
    if module is None:
        return
    if module.function is None:
        yield Problem(
            f"{path}.module",
            f'module "{module.name}" is an executable, and boundaries are for functions',
            "let it exchange files, or let a function module speak for it",
        )
    if part.copy_index is not None and module.copies != "fill" and part.copy_index >= module.copies:
        yield Problem(
            f"{path}.copy",
            f"there is no copy {part.copy_index}: "
            f'module "{module.name}" has copies = {module.copies}, from 0',
            f"for example copy = {module.copies - 1}",
        )
    if part.rank is not None and part.rank >= module.processes:
        yield Problem(
            f"{path}.rank",
            f"there is no rank {part.rank}: "
            f'module "{module.name}" has processes = {module.processes}, from 0',
            f"for example rank = {module.processes - 1}",
        )


def _check_owners(
    boundary: Boundary, path: str, modules: Mapping[str, Module]
) -> Iterator[Problem]:
    for position, part in enumerate(boundary.owners):
        module = modules.get(part.module)
        if module is not None and part.split is None and (several := _several(part, module)):
            yield Problem(
                f"{path}.owners[{position}]",
                f'{several} of module "{module.name}" would own the same section',
                "divide it with split = 0, or say which copy and rank owns it",
            )
        for earlier, other in enumerate(boundary.owners[:position]):
            shared = intersection(part.box(boundary.shape), other.box(boundary.shape))
            if shared is not None:
                yield Problem(
                    f"{path}.owners[{position}]",
                    f"{show_box(shared)} has an owner already: owners[{earlier}]",
                    "let sections of owners not overlap",
                )


def _several(part: Part, module: Module) -> str:
    """Say who is meant if that is, or may be, more than one rank."""
    ranks = module.processes if part.rank is None else 1
    if part.copy_index is None and module.copies == "fill":
        return 'the copies (copies = "fill")'
    copies = module.copies if part.copy_index is None and module.copies != "fill" else 1
    return f"{copies * ranks} ranks" if copies * ranks > 1 else ""


def _check_readers(boundary: Boundary, path: str) -> Iterator[Problem]:
    owned = [part.box(boundary.shape) for part in boundary.owners]
    for position, part in enumerate(boundary.readers):
        missing = outside(part.box(boundary.shape), owned)
        if missing:
            yield Problem(
                f"{path}.readers[{position}]",
                f"nobody owns {show_box(missing[0])}, which it reads",
                "let it read less, or add an owner",
            )


def _check_group(
    boundary: Boundary, path: str, document: Mapping[str, Any], unsure: set[str]
) -> Iterator[Problem]:
    groups = document.get("group")
    if not isinstance(groups, list) or "group" in unsure:
        return
    lists = [entry.get("modules") for entry in groups if isinstance(entry, dict)]
    together = [set(map(str, one)) for one in lists if isinstance(one, list)]
    if together and not any(one.issuperset(boundary.modules) for one in together):
        names = ", ".join(f'"{name}"' for name in boundary.modules)
        yield Problem(
            path,
            f"no group has all of its modules: {names}",
            "only modules of one group run together: list them in the modules of one [[group]]",
        )
