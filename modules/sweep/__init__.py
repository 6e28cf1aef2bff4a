"""The parts of a sweep that run: which rank runs which trial, and what is recorded.

::

    a master        master_loop, dispatcher, leases, warm_start, results, ledger, output, models
    a trainer       worker_loop, runners, subprocess_runner
    between them    messages, in_flight
    other runs      shared, joining; joined_workers is the master's end, joined_loop a worker's
    observers       steering, watched, comparison, export
"""
