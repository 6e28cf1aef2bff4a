"""Read, check, edit and draw workflow files: from TOML to a validated `Workflow`.

::

    load.py        reads a file and finds every problem in it at once
    source.py      the file as TOML reads it, and the line of each key
    model.py       the models of a valid file: a Workflow and its tables
    module.py      the model of [[module]]
    boundary.py    the model of [[boundary]], and the checks that involve other tables
    fields.py      types of single values: names, counts; which keys say what an entry runs
    references.py  checks of several entries: names, dependencies, groups in groups
    functions.py   finds a module's function without importing it;
                   definitions.py the names that a Python file defines
    programs.py    placeholders in the words of an executable, and whether it can be started
    problems.py    pydantic's errors as Problems: a path, plain words, a remedy
    annotations.py what a key accepts, in words, and an example of it
    graph.py       cycles, orders and the heaviest antichain of the dependency graph
    sections.py    boxes of index ranges
    drawing.py     a workflow as text, for Graphviz and for Mermaid; svg.py as a picture
    document.py    edits of a file's text, with undo; edits.py the edits of single tables
    schema.py      the JSON Schema of a file, and the page that documents its keys
    examples.py    the workflow files that come with diel
"""
