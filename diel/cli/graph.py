"""``diel graph``: the groups of a workflow file as a drawing."""

from __future__ import annotations

import argparse
import sys

from diel.workflow.drawing import ASCII, draw_dot, draw_mermaid, draw_text, tree_of
from diel.workflow.load import load_workflow

_DRAWINGS = {"text": draw_text, "dot": draw_dot, "mermaid": draw_mermaid}


def graph(options: argparse.Namespace) -> int:
    """Print the drawing; return the exit code.

    Raises
    ------
    WorkflowError
        With every problem of the file.
    """
    text = _DRAWINGS[options.format](tree_of(load_workflow(options.file)))
    if options.format == "text" and not _can_be_shown(text):
        text = text.translate(ASCII)
    print(text)
    return 0


def _can_be_shown(text: str) -> bool:
    drawn = "".join(one for one in text if ord(one) in ASCII)
    try:
        drawn.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
