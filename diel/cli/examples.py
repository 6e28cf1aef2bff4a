"""``diel examples``: workflow files that come with diel, to read, copy and run."""

from __future__ import annotations

import argparse
import shlex

from diel.cli.output import aligned
from diel.errors import LaunchError
from diel.workflow.examples import copy_example, find_example, list_examples


def examples(options: argparse.Namespace) -> int:
    """List the examples, or copy an example; return the exit code.

    Raises
    ------
    LaunchError
        If there are no examples, none has that name, or the copy would replace a file.
    """
    if options.name is not None:
        files = copy_example(find_example(options.name), options.to)
        for file in files:
            print(file)
        print(f"diel run {shlex.quote(str(files[0]))}")
        return 0
    found = list_examples()
    if not found:
        raise LaunchError("this installation of diel carries no examples: pip install diel again")
    print("\n".join(aligned([(example.name, example.text) for example in found])))
    print("diel examples NAME copies one, with the files that it needs")
    return 0
