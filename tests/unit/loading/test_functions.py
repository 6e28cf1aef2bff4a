"""Importing function modules, each case in a process of its own.

``modules`` is a common name: a user's own, beside the workflow file, and ours live together.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from support import Finished

Python: TypeAlias = "Callable[[str], list[str]]"

# Prints what function modules return; the first argument is the workflow's folder.
CALL = """
import sys
from pathlib import Path
from diel.loading.functions import find_function, import_code
from diel.workflow.functions import locate

folder = Path(sys.argv[1])

def load(spec):
    location = locate(spec, folder)
    code = import_code(location, folder)
    return code, find_function(location, code)

def call(spec):
    return load(spec)[1](None)
"""


@pytest.fixture
def python(run_python: Callable[[str], Finished]) -> Python:
    """Return what runs a script after `CALL` and returns the lines that it prints."""

    def run(script: str) -> list[str]:
        finished = run_python(CALL + textwrap.dedent(script))
        assert finished.status == 0, finished.output
        return finished.stdout.splitlines()

    return run


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(textwrap.dedent(text))


def test_a_file_beside_the_workflow_file(tmp_path: Path, python: Python) -> None:
    write(
        tmp_path,
        {
            "work.py": "import helper\ndef run(ctx): return helper.WORDS, __name__",
            "helper.py": "WORDS = 'from the helper'",
            "other/work.py": "import near\ndef run(ctx): return near.WORDS, __name__",
            "other/near.py": "WORDS = 'near'",
        },
    )
    found = python(
        """
        words, name = call("./work.py:run")
        near, other = call("./other/work.py:run")
        print(words); print(near); print(name != other)
        print(load("./work.py:run")[0] is load("./work.py:run")[0])
        print(call("work:run"))
        """
    )
    assert found == ["from the helper", "near", "True", "True", "('from the helper', 'work')"]


def test_instances_of_a_files_classes_can_be_pickled(tmp_path: Path, python: Python) -> None:
    write(tmp_path, {"work.py": "class Value: x = 3\ndef run(ctx): return Value()"})
    script = 'import pickle; print(pickle.loads(pickle.dumps(call("./work.py:run"))).x)'
    assert python(script) == ["3"]


def test_a_package_of_the_users(tmp_path: Path, python: Python) -> None:
    write(
        tmp_path,
        {
            "pack/__init__.py": "",
            "pack/deep/__init__.py": "def run(ctx): return __name__",
            "pack/deep/work.py": "from ..tools import WORDS\ndef run(ctx): return WORDS",
            "pack/tools.py": "WORDS = 'tools'",
        },
    )
    script = 'print(call("pack.deep.work:run"), call("pack.deep:run"))'
    assert python(script) == ["tools pack.deep"]


@pytest.mark.parametrize("init", [None, "WORDS = 'of the package'"])
@pytest.mark.parametrize("ours_first", [True, False])
def test_a_users_modules_folder_and_ours_in_one_process(
    tmp_path: Path, python: Python, init: str | None, ours_first: bool
) -> None:
    write(
        tmp_path,
        {
            "modules/work.py": """
                import modules
                from modules.helper import HELP
                from .helper import HELP as same
                from modules import space
                def run(ctx):
                    words = getattr(modules, "WORDS", "no words")
                    return f"{HELP} {same is HELP} {words} {space.MINE}"
            """,
            "modules/helper.py": "HELP = 'help'",
            "modules/space.py": "MINE = 'my own space'",  # a name that ours has too
            **({} if init is None else {"modules/__init__.py": init}),
        },
    )
    ours = 'master = load("modules.master:run")[0]'
    theirs = 'print(call("modules.work:run"))'
    found = python(
        f"""
        sys.path.remove("")  # the current directory
        import modules.trial  # as the session of a tool may have done already
        {ours if ours_first else theirs}
        {theirs if ours_first else ours}
        print(len(master.Options(space={{"a": [1, 2]}}).space["a"]))
        from modules.helper import HELP
        print(HELP)
        trainer = load("modules.trainer:run")[0]
        def messages(code):
            return sys.modules[code.__package__ + ".sweep.messages"]
        print(messages(trainer) is messages(master))
        import pickle
        print(pickle.loads(pickle.dumps(messages(master).End((2,)))).iteration[0])
        """
    )
    words = "of the package" if init else "no words"
    assert found == [f"help True {words} my own space", "2", "help", "True", "2"]


def test_a_users_modules_file_and_ours_in_one_process(tmp_path: Path, python: Python) -> None:
    write(tmp_path, {"modules.py": "WORDS = 'mine'\ndef run(ctx): return WORDS"})
    found = python(
        """
        print(load("modules.master:run")[1].__name__)
        print(call("modules:run"), call("./modules.py:run"))
        import modules
        print(modules.WORDS)
        """
    )
    assert found == ["run", "mine mine", "mine"]


def test_a_users_trainer_replaces_ours_of_that_name(tmp_path: Path, python: Python) -> None:
    write(tmp_path, {"modules/trainer.py": "def run(ctx): return 'mine'"})
    found = python(
        """
        print(call("modules.trainer:run"))
        print(hasattr(load("modules.master:run")[0], "Search"))
        """
    )
    assert found == ["mine", "True"]


def test_without_a_folder_of_the_users_ours_has_its_own_name(python: Python) -> None:
    found = python('print(load("modules.master:run")[0].__name__)')
    assert found == ["modules.master"]


def test_an_error_in_a_file_is_raised_each_time(tmp_path: Path, python: Python) -> None:
    write(tmp_path, {"work.py": "def run(ctx): pass\nraise KeyError('at import')"})
    found = python(
        """
        for _ in range(2):
            try:
                load("./work.py:run")
            except KeyError as error:
                print(error)
        """
    )
    assert found == ["'at import'"] * 2


@pytest.mark.parametrize("code", ["run = 3", "async def run(ctx): pass"])
def test_what_is_no_plain_function_is_refused(tmp_path: Path, python: Python, code: str) -> None:
    write(tmp_path, {"work.py": "from helper import run", "helper.py": code})
    found = python(
        """
        try:
            load("./work.py:run")
        except TypeError as error:
            print(error)
        """
    )
    assert found == ["./work.py:run is not a plain function"]
