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


# -- files in folders of their own ----------------------------------------------------------------

FOLDERS = {
    f"{folder}/{name}": text.replace("FOLDER", folder)
    for folder in ("a", "b")
    for name, text in {
        "run.py": """
            import importlib
            import helper, pack.deep.leaf, statistics
            import pack.deep as deep
            from pack import part
            def run(ctx):
                import late  # when the module runs, after those of other folders were imported
                found = importlib.import_module("pack.deep.leaf")
                again = importlib.reload(importlib.import_module("helper"))
                assert found is pack.deep.leaf and again is helper
                assert late.helper is helper and late.run is run
                return " ".join([
                    helper.where(), late.WHERE, pack.deep.leaf.WHERE, deep.WHERE, part.WHERE,
                    statistics.WHERE, __import__("late").WHERE,
                    importlib.import_module("late").WHERE,
                ])
        """,
        "helper.py": """
            import other
            class Value: where = "FOLDER"
            def where():
                from other import WHERE as found
                return found
        """,
        "other.py": "WHERE = 'FOLDER'",
        "late.py": "import helper\nfrom run import run\nWHERE = 'FOLDER'",
        "statistics.py": "WHERE = 'FOLDER'",
        "pack/__init__.py": "",
        "pack/part.py": "from . import deep\nfrom .deep.leaf import WHERE",
        "pack/deep/__init__.py": "from .leaf import WHERE",
        "pack/deep/leaf.py": "import helper\nWHERE = helper.where()",
    }.items()
}


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_what_a_file_imports_from_its_folder_is_its_own(
    tmp_path: Path, python: Python, order: str
) -> None:
    write(tmp_path, FOLDERS)
    write(tmp_path, {"c.py": "import helper\ndef run(ctx): return helper.MINE"})
    write(tmp_path, {"helper.py": "MINE = 'beside the workflow file'"})
    first, second = order
    found = python(
        f"""
        print(call("c:run"))
        loaded = [load("./{first}/run.py:run"), load("./{second}/run.py:run")]
        for _ in range(2):
            print(*(function(None) for _, function in loaded), sep="; ")
        import helper, statistics
        print(helper.MINE, hasattr(statistics, "mean"), str(folder / "a") in sys.path)
        """
    )
    own = [" ".join([name] * 8) for name in order]
    assert found == [
        "beside the workflow file",
        *["; ".join(own)] * 2,
        "beside the workflow file True False",
    ]


@pytest.mark.parametrize("is_loaded", [True, False])
def test_files_beside_the_workflow_file_with_names_of_libraries(
    tmp_path: Path, python: Python, is_loaded: bool
) -> None:
    write(
        tmp_path / "flow",
        {
            "work.py": """
                import colorsys, installed.part, statistics
                from installed import part
                def run(ctx):
                    import needs, plistlib
                    assert part is installed.part and plistlib.WHERE == "mine"
                    return colorsys.Value, part.Value, statistics.WHERE, needs.WHERE
            """,
            "colorsys.py": "from part import WHERE\nclass Value: where = WHERE",
            "part.py": "WHERE = 'mine'",
            "plistlib.py": "import plistlib\nWHERE = 'mine'\nassert plistlib.loads",
            "statistics.py": "import statistics\nWHERE = 'mine' if statistics.mean else ''",
            "installed/__init__.py": "from installed import part",
            "installed/part.py": "class Value: where = 'mine'",
            "sub/again.py": "import colorsys\ndef run(ctx): return colorsys.Value",
        },
    )
    write(
        tmp_path / "site",
        {
            "installed/__init__.py": "",
            "installed/part.py": "WHERE = 'library'",
            "needs.py": "import colorsys, installed.part as p\nassert colorsys.hls_to_rgb\n"
            "WHERE = p.WHERE",
        },
    )
    ask = "import pickle, sys; print(pickle.load(sys.stdin.buffer).where)"
    found = python(
        f"""
        import pickle, subprocess
        sys.path.append(str(folder / "site"))
        folder = folder / "flow"
        if {is_loaded}:
            import colorsys, installed.part, plistlib, statistics
        value, other, *where = call("./work.py:run")
        print(value.where, other.where, *where)
        print(call("./sub/again.py:run") is value, call("work:run")[0] is value)
        print(hasattr(load("installed.part:Value")[0], "Value"), value.__module__)
        for kind in (value, other):
            command = [sys.executable, "-c", {ask!r}]
            subprocess.run(command, input=pickle.dumps(kind()), check=True)
        """
    )
    assert found == [
        "mine mine mine library",
        "True True",
        "True diel.loading.files.%2E.colorsys",
        "mine",
        "mine",
    ]


def test_files_of_one_folder_share_what_they_import(tmp_path: Path, python: Python) -> None:
    write(
        tmp_path,
        {
            "a/one.py": "import helper\ndef run(ctx): return helper",
            "a/two.py": "import helper, one\ndef run(ctx): return helper, one.run",
            "a/helper.py": "",
        },
    )
    found = python(
        """
        one = load("./a/one.py:run")[1]
        print(call("./a/two.py:run") == (one(None), one), call("./a/../a/one.py:run") is one(None))
        """
    )
    assert found == ["True True"]


def test_a_folder_of_data_hides_no_package(tmp_path: Path, python: Python) -> None:
    write(
        tmp_path,
        {
            "a/run.py": """
                import numpy, parts.one
                def run(ctx): return numpy.__name__, parts.one.__name__.rpartition("files.")[2]
            """,
            "a/numpy/weights.txt": "",
            "a/parts/one.py": "",
        },
    )
    assert python('print(*call("./a/run.py:run"))') == ["numpy a.parts.one"]


def test_folders_that_a_file_adds_to_the_search_path(tmp_path: Path, python: Python) -> None:
    files = {
        "run.py": """
            import os, sys
            sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
            import common
            def run(ctx):
                import more
                return common.WHERE + more.WHERE
        """,
        "lib/common.py": "import more\nWHERE = more.WHERE",
    }
    for name in ("a", "b"):
        write(tmp_path / name, {**files, "lib/more.py": f"WHERE = {name!r}"})
    found = python(
        """
        before = sys.path.copy()
        def run(name):
            result = call(f"./{name}/run.py:run")
            sys.path[:] = before  # as after each module
            return result
        print(run("a"), run("b"), run("a"))
        """
    )
    assert found == ["aa bb aa"]


def test_libraries_find_what_a_file_names_to_them(tmp_path: Path, python: Python) -> None:
    for name in ("a", "b"):
        write(
            tmp_path / name,
            {
                "run.py": """
                    import pickle
                    from pydantic import ImportString, TypeAdapter
                    import pack.helper
                    def run(ctx):
                        value = pickle.loads(b"cpack.helper\\nValue\\n.")
                        imported = TypeAdapter(ImportString).validate_python("pack.helper.Value")
                        assert value is imported is pack.helper.Value
                        return value.where
                """,
                "pack/helper.py": f"class Value: where = {name!r}",
            },
        )
    found = python(
        """
        from diel.loading.files import forget_plain_names
        for name in "aba":
            forget_plain_names()  # as between two modules of a rank
            print(call(f"./{name}/run.py:run"))
        """
    )
    assert found == ["a", "b", "a"]


def test_modules_that_run_at_once_in_one_process(tmp_path: Path, python: Python) -> None:
    run = """
        def run(ctx):
            ctx.tuples.tput(ctx.module, 0)
            ctx.tuples.tread({"a": "b", "b": "a"}[ctx.module], timeout=60)  # both are running
            import helper, late
            return helper.WHERE + late.WHERE
    """
    for name in ("a", "b"):
        own = f"WHERE = {name!r}"
        write(
            tmp_path / name, {"run.py": run, "helper.py": own, "late.py": f"import helper\n{own}"}
        )
    found = python(
        """
        from diel.testing import run_modules
        runs = run_modules({name: f"./{name}/run.py:run" for name in "ab"}, folder=folder)
        print(*(runs[name][0].returned for name in "ab"))
        """
    )
    assert found == ["aa bb"]


def test_a_missing_import_is_reported_as_ever(tmp_path: Path, python: Python) -> None:
    write(tmp_path, {"a/run.py": "def run(ctx):\n  import helper.part", "a/helper.py": ""})
    write(tmp_path, {"a/other.py": "def run(ctx):\n  import nothing"})
    found = python(
        """
        for name in ("run", "other"):
            try:
                call(f"./a/{name}.py:run")
            except ModuleNotFoundError as error:
                print(error)
        """
    )
    assert found == [
        "No module named 'helper.part'; 'helper' is not a package",
        "No module named 'nothing'",
    ]


def test_a_traceback_shows_the_users_frames_alone(tmp_path: Path, python: Python) -> None:
    write(tmp_path, {"a/run.py": "import helper\ndef run(ctx): pass", "a/helper.py": "1 / 0"})
    found = python(
        """
        from diel.executive.outcome import detail
        try:
            load("./a/run.py:run")
        except ZeroDivisionError as error:
            print(*(line for line in detail(error).splitlines() if "  File" in line), sep="\\n")
        """
    )
    own = ("<string>", "functions.py")  # of the test, and above the first of the user
    files = [line.partition('", line')[0].rpartition("/")[2] for line in found]
    assert [file for file in files if not file.endswith(own)] == ["run.py", "helper.py"]
    assert found[-2].endswith("<module>")


IN_CHILDREN = """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    import helper

    class State:
        def __init__(self, number): self.number = number

    def square(state):
        import late
        return helper.Number(late.times(state.number, state.number)), State(0)

    def run(ctx):
        states = [State(number) for number in range(3)]
        for method in ("spawn", "forkserver"):
            context = multiprocessing.get_context(method)
            with context.Pool(1) as pool:
                check(pool.map_async(square, states).get(60))
            with ProcessPoolExecutor(1, context) as executor:
                check(executor.map(square, states, timeout=60))
        return "done"

    def check(results):
        for root, (number, state) in enumerate(results):
            assert type(number) is helper.Number and number == root**2 and type(state) is State
"""


@pytest.mark.parametrize(
    "file", ["sub/work.py", "colorsys.py", "queue.py", "my-file.py", "v1.2/ü %/my.work.py"]
)
def test_child_processes_find_classes_and_functions(
    tmp_path: Path, python: Python, file: str
) -> None:
    write(
        tmp_path,
        {
            file: IN_CHILDREN,
            str(Path(file).with_name("helper.py")): "class Number(int): pass",
            str(Path(file).with_name("late.py")): "from operator import mul as times",
        },
    )
    assert python(f"if __name__ == '__main__': print(call('./{file}:run'))") == ["done"]


def test_joblib_finds_functions(tmp_path: Path, python: Python) -> None:
    pytest.importorskip("joblib")
    write(
        tmp_path,
        {
            "sub/work.py": """
                import joblib, helper
                def run(ctx):
                    parallel = joblib.Parallel(2, timeout=60)
                    found = parallel(joblib.delayed(helper.made)(n) for n in range(3))
                    return [type(number) is helper.Number for number in found]
            """,
            "sub/helper.py": "class Number(int): pass\ndef made(n): return Number(n)",
        },
    )
    assert python('print(call("./sub/work.py:run"))') == ["[True, True, True]"]


def test_workflow_files_of_two_folders_in_one_process(tmp_path: Path, python: Python) -> None:
    for name in ("a", "b", "plain"):
        write(
            tmp_path / name,
            {
                "work.py": """
                    import helper, pack.deep
                    def run(ctx):
                        import late
                        return helper.WHERE + pack.deep.run(ctx) + late.WHERE
                """,
                "helper.py": f"WHERE = {name!r}",
                "late.py": "from helper import WHERE",
                "pack/__init__.py": "",
                "pack/deep.py": "import helper\ndef run(ctx): return helper.WHERE",
            },
        )
    for name in ("a", "b"):  # names of libraries, in two of them
        (tmp_path / name / "helper.py").write_text("from calendar import WHERE")
        (tmp_path / name / "calendar.py").write_text(f"WHERE = {name!r}")
    found = python(
        """
        from diel.testing import run_modules
        for name in ("a", "b", "plain", "a", "plain"):
            runs = [
                run_modules({"module": spec}, folder=folder / name)["module"][0].returned
                for spec in ("work:run", "./work.py:run", "pack.deep:run")
            ]
            print(*runs)
        """
    )
    assert found == [f"{name * 3} {name * 3} {name}" for name in ("a", "b", "plain", "a", "plain")]


def test_files_that_options_name_outside_of_the_folder(tmp_path: Path, python: Python) -> None:
    work = "class Value: x = 3\ndef train(parameters, report): return Value()"
    write(tmp_path, {"far/work.py": work, "flow/work.py": "def run(ctx): pass", "ask.py": ASK})
    found = python(
        """
        import os, pickle, subprocess
        from diel.loading.files import use_folder
        from diel.loading.module_spec import ModuleSpec

        folder = folder / "flow"
        spec = ModuleSpec(
            name="trainer", function=locate("work:run", folder), executable=None, threads=1,
            options={"jobs": [{"train": "../far/work.py:train"}], "data": "../far.py", "n": 3},
        )
        named = list(spec.files(folder))
        print(*(os.path.relpath(file, folder) for file in named))
        use_folder(folder, named)
        command = [sys.executable, "../ask.py"]
        value = b"cdiel.loading.files.NAME.work\\nValue\\n."
        key = __import__("urllib.parse").parse.quote(str(folder.parent / "far"), safe="")
        given = value.replace(b"NAME", key.replace(".", "%2E").encode())
        # In a child, before and after it has set the same folder.
        subprocess.run(command, input=given.hex(), text=True, cwd=folder, check=True)
        first = "from diel.loading.files import use_folder; from pathlib import Path;"
        first += f"use_folder(Path({str(folder)!r}));"
        command[1:] = ["-c", first + (folder.parent / "ask.py").read_text()]
        subprocess.run(command, input=given.hex(), text=True, cwd=folder, check=True)
        """
    )
    assert found == ["work.py ../far/work.py", "3", "3"]


ASK = """
import pickle, sys

for value in sys.stdin.read().split():
    try:
        print(pickle.loads(bytes.fromhex(value)).x)
    except ModuleNotFoundError as error:
        print(str(error).rpartition(": ")[2])
"""


def test_a_process_finds_files_in_the_folders_that_it_was_told_of_alone(
    tmp_path: Path, python: Python
) -> None:
    work = "class Value: x = 3\ndef run(ctx): return Value()"
    write(tmp_path, {"ask.py": ASK, "flow/sub/deep/work.py": work, "lib/work.py": work})
    write(tmp_path, {"secret/work.py": "print('this code was never named')"})
    found = python(
        """
        import os, pickle, subprocess
        from urllib.parse import quote
        from diel.loading.files import FOLDERS_VARIABLE

        def ask(values, **environment):
            given = " ".join(value.hex() for value in values)
            command = [sys.executable, "ask.py"]
            subprocess.run(command, input=given, text=True, env={**os.environ, **environment})

        home, folder = folder, folder / "flow"
        ask([pickle.dumps(call(spec)) for spec in ("./sub/deep/work.py:run", "../lib/work.py:run")])
        forged = ["../secret", f"{home}/secret", "sub/../../secret", "sub/./deep", "nowhere"]
        forged = [quote(name, safe="").replace(".", "%2E") for name in forged]
        ask([f"cdiel.loading.files.{name}.work\\nValue\\n.".encode() for name in forged])
        ask([b"cdiel.loading.files.sub.work\\nValue\\n."], **{FOLDERS_VARIABLE: ""})
        """
    )
    none = f"the workflow in {tmp_path / 'flow'} has no modules in a folder"
    assert found == [
        "3",
        "3",
        f"{none} '../secret'",
        f"{none} '{tmp_path / 'secret'}'",
        f"{none} 'sub/../../secret'",
        f"{none} 'sub/./deep'",
        f"{none} 'nowhere'",
        "this process has no modules in a folder 'sub'",
    ]
