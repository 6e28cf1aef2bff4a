"""Plugins of installed packages, found by the entry points that the packages declare.

::

    [project.entry-points."diel.modules"]       in the pyproject.toml of a package
    lattice = "lattice.modules:run"             function = "lattice": a function of a context
    lattice_modules = "lattice_modules"         function = "lattice_modules.file:function"
    [project.entry-points."diel.trainers"]
    lattice = "lattice.training:train"          train = "lattice", of a trainer of a sweep
    [project.entry-points."diel.strategies"]
    annealing = "lattice.search:Annealing"      strategy = "annealing", of a sweep
    [project.entry-points."diel.reporters"]
    lattice = "lattice:LatticeReporter"         a class derived from `diel.Reporter`

diel's own modules and its report of a sweep are found in the same way. To go through the installed
packages takes some milliseconds: that is done once, and only where a name is asked for.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from diel.errors import PluginError
from diel.frozen import Frozen

MODULES: Final = "modules"
REPORTERS: Final = "reporters"
STRATEGIES: Final = "strategies"
TRAINERS: Final = "trainers"

INSTALL_ROOT = Path(__file__).absolute().parents[1]
"""The folder of the package ``diel`` and of the packages that are installed with it."""

_KINDS: Final = (MODULES, REPORTERS, STRATEGIES, TRAINERS)
_OWN_KINDS: Final = (MODULES, REPORTERS)
_PREFIX: Final = "diel."
_OWN_DISTRIBUTION: Final = "diel"
_ALIAS: Final = "diel_shipped_"


class Plugin(Frozen):
    """An entry point of an installed package.

    Attributes
    ----------
    name : str
        As a workflow file writes it.
    value : str
        ``package.module:attribute``, or a module or package.
    distribution : str
        The installed package that declares it.
    folder : Path
        The folder that this package is installed in, unless it is installed as editable.
    """

    name: str
    value: str
    distribution: str
    folder: Path


def installed_plugins(kind: str) -> Mapping[str, Plugin]:
    """Return the plugins of a kind that installed packages declare, by name.

    Parameters
    ----------
    kind : {"modules", "reporters", "strategies", "trainers"}

    Raises
    ------
    PluginError
        If diel's own entry points are missing, or two packages declare the same name.
    """
    return _installed(tuple(sys.path))[kind]


@functools.lru_cache(maxsize=4)
def _installed(_search_path: tuple[str, ...]) -> dict[str, dict[str, Plugin]]:
    # pydantic imports this too, so it costs little by the time that a workflow file is read.
    from importlib import metadata

    found: dict[str, dict[str, Plugin]] = {kind: {} for kind in _KINDS}
    own: set[str] = set()
    seen: set[str] = set()
    for distribution in metadata.distributions():
        # Few packages declare plugins, and to parse the text takes longer than to read it.
        if _PREFIX not in (distribution.read_text("entry_points.txt") or ""):
            continue
        owner = distribution.metadata["Name"]
        if owner in seen:  # a second distribution of that name is hidden, as its code is
            continue
        seen.add(owner)
        folder = Path(str(distribution.locate_file("")))
        for entry in distribution.entry_points:
            kind = entry.group.removeprefix(_PREFIX)
            if not entry.group.startswith(_PREFIX) or kind not in found:
                continue
            if owner == _OWN_DISTRIBUTION:
                own.add(kind)
            there = found[kind].get(entry.name)
            if there is not None:
                raise PluginError(
                    f"{_PREFIX}{kind}: {there.distribution} and {owner} both have a "
                    f"{entry.name!r}; uninstall one of them"
                )
            found[kind][entry.name] = Plugin(entry.name, entry.value, owner, folder)
    missing = [_PREFIX + kind for kind in _OWN_KINDS if kind not in own]
    if missing:
        raise PluginError(
            f"the installed diel does not declare its entry points {' and '.join(missing)}: "
            f"reinstall it, as in pip install -e {INSTALL_ROOT}"
        )
    return found


def load_installed(kind: str, name: str) -> Any:
    """Import the object or module that an installed plugin names.

    Parameters
    ----------
    kind : {"modules", "reporters", "strategies", "trainers"}
    name : str

    Raises
    ------
    PluginError
        If there is no plugin of that name, or it cannot be imported.
    """
    plugin = installed_plugins(kind).get(name)
    if plugin is None:
        raise PluginError(f"no installed package declares {name!r} in {_PREFIX}{kind}")
    where, _, attribute = plugin.value.partition(":")
    try:
        found: Any = import_installed(where)
        for part in filter(None, attribute.split(".")):
            found = getattr(found, part)
    except Exception as error:  # the code of a plugin can raise anything at import
        raise PluginError(
            f"{_PREFIX}{kind}: {name!r} of {plugin.distribution}: {type(error).__name__}: {error}"
        ) from error
    return found


# -- packages of modules --------------------------------------------------------------------------


def module_packages() -> dict[str, Path]:
    """Return the folders of installed packages of modules, by the names of the packages."""
    packages = {}
    for plugin in installed_plugins(MODULES).values():
        if ":" in plugin.value or "." in plugin.value:
            continue
        for root in (INSTALL_ROOT, plugin.folder):
            if (root / plugin.value).is_dir():
                packages[plugin.value] = root / plugin.value
                break
        else:
            found = PathFinder.find_spec(plugin.value)
            for place in (found and found.submodule_search_locations) or ():
                packages.setdefault(plugin.value, Path(place))
    return packages


def import_installed(name: str) -> ModuleType:
    """Import a module of an installed package, even where a user's folder has the package's name.

    A package of modules is imported under an alias, so it must import its own files relatively,
    unless Python has it already under its name: then there is no second copy of it.

    Parameters
    ----------
    name : str
        Dotted, such as ``package.module``.
    """
    top, _, rest = name.partition(".")
    folder = module_packages().get(top)
    if folder is None:
        return importlib.import_module(name)
    alias = _ALIAS + top
    if alias not in sys.modules:
        if str(folder) in getattr(sys.modules.get(top), "__path__", ()):
            return importlib.import_module(name)
        _import_as(alias, folder)
    return importlib.import_module(f"{alias}.{rest}") if rest else sys.modules[alias]


def _import_as(alias: str, folder: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        alias, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[alias] = package
    spec.loader.exec_module(package)
