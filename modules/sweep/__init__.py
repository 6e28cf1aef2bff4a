"""The parts of a sweep that run: which rank runs which trial, and what is recorded.

::

    a master        master_loop, dispatcher, leases, warm_start, results, ledger, output, models
    a trainer       trainer_loop, runners, subprocess_runner
    between them    messages, in_flight
    other runs      shared, joining; joined_workers has the master's end and a worker's
    observers       steering, watched, output
"""
