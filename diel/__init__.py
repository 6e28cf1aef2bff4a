"""A workflow executive with a tuple space, on MPI.

Importing this package imports neither MPI nor NumPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diel.coupling.address import Address as Address
    from diel.embedding import Executive as Executive
    from diel.loading.context import Context as Context
    from diel.loading.functions import import_function as import_function
    from diel.loading.functions import load_plugin as load_plugin
    from diel.loading.process_state import restoring as restoring
    from diel.loading.reporter import Reporter as Reporter
    from diel.loading.reporter import ResultsTable as ResultsTable
    from diel.loading.trial_log import TrialLog as TrialLog
    from diel.opened_run import Run as Run
    from diel.opened_run import open_run as open_run
    from diel.plugins import installed_plugins as installed_plugins
    from diel.processes import end_with_parent as end_with_parent
    from diel.processes import start_helper as start_helper
    from diel.run.files import file_opener as file_opener
    from diel.run.files import open_regular as open_regular
    from diel.run.files import part_of as part_of
    from diel.run.files import read_json as read_json
    from diel.run.files import replace_file as replace_file
    from diel.run.files import replacing as replacing
    from diel.run.json_lines import JsonLinesFile as JsonLinesFile
    from diel.run.json_lines import whole_lines as whole_lines
    from diel.run.json_values import as_integer as as_integer
    from diel.run.json_values import as_number as as_number
    from diel.run.json_values import parse_json as parse_json
    from diel.sweeping import sweep as sweep
    from diel.text import describe_error as describe_error
    from diel.text import describe_traceback as describe_traceback
    from diel.text import duration_s as duration_s
    from diel.text import format_duration as format_duration
    from diel.text import format_value as format_value
    from diel.tuples.tags import ANY as ANY
    from diel.workflow.functions import locate_function as locate_function
    from diel.workflow.load import load_workflow as load_workflow
    from diel.workflow.programs import child_environment as child_environment

__version__ = "0.1.0.dev0"

# Public name -> the module that defines it; imported on first use.
_MODULE_OF = {
    "ANY": "diel.tuples.tags",
    "Address": "diel.coupling.address",
    "Context": "diel.loading.context",
    "Executive": "diel.embedding",
    "JsonLinesFile": "diel.run.json_lines",
    "Reporter": "diel.loading.reporter",
    "ResultsTable": "diel.loading.reporter",
    "Run": "diel.opened_run",
    "TrialLog": "diel.loading.trial_log",
    "as_integer": "diel.run.json_values",
    "as_number": "diel.run.json_values",
    "child_environment": "diel.workflow.programs",
    "describe_error": "diel.text",
    "describe_traceback": "diel.text",
    "duration_s": "diel.text",
    "end_with_parent": "diel.processes",
    "file_opener": "diel.run.files",
    "format_duration": "diel.text",
    "format_value": "diel.text",
    "import_function": "diel.loading.functions",
    "installed_plugins": "diel.plugins",
    "load_plugin": "diel.loading.functions",
    "load_workflow": "diel.workflow.load",
    "locate_function": "diel.workflow.functions",
    "open_run": "diel.opened_run",
    "open_regular": "diel.run.files",
    "parse_json": "diel.run.json_values",
    "part_of": "diel.run.files",
    "read_json": "diel.run.files",
    "replace_file": "diel.run.files",
    "replacing": "diel.run.files",
    "restoring": "diel.loading.process_state",
    "start_helper": "diel.processes",
    "sweep": "diel.sweeping",
    "whole_lines": "diel.run.json_lines",
}
__all__ = [
    "ANY",
    "Address",
    "Context",
    "Executive",
    "JsonLinesFile",
    "Reporter",
    "ResultsTable",
    "Run",
    "TrialLog",
    "__version__",
    "as_integer",
    "as_number",
    "child_environment",
    "describe_error",
    "describe_traceback",
    "duration_s",
    "end_with_parent",
    "file_opener",
    "format_duration",
    "format_value",
    "import_function",
    "installed_plugins",
    "load_plugin",
    "load_workflow",
    "locate_function",
    "open_regular",
    "open_run",
    "parse_json",
    "part_of",
    "read_json",
    "replace_file",
    "replacing",
    "restoring",
    "start_helper",
    "sweep",
    "whole_lines",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'diel' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
