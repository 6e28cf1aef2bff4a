"""The executive: rank 0 drives a pure scheduler, all other ranks serve tuples or do work.

::

    rank 0        driver.py  ── orders ──>  worker.py   every rank of the pool
                      │      <── reports ──
                  scheduler.py (pure)
    rank 1 ...    tuple servers

    placement/    (pure)      copies, ranks and GPUs; who would run where, as a preview
    launch.py, rank_launcher.py   waiting for mpiexec, srun or flux; choosing among them
    batch_scripts.py              what a batch job needs, and scripts that ask for it
"""
