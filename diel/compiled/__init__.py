"""Modules in C, C++ and Fortran: functions of shared objects that ranks call, and ``diel.h``.

::

    diel.h          what modules include: a struct, a table of calls, and a function for each call
    layout.py       the same struct and table as ctypes
    values.py       values of Python as ``diel_array``, and back
    calls.py        what each call does, for one copy of a module
    library.py      loads a shared object, and calls its function
"""
