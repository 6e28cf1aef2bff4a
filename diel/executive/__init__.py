"""The executive: rank 0 drives a pure scheduler, all other ranks serve tuples or do work.

::

    rank 0        driver.py  ── orders ──>  worker.py   every rank of the pool
                      │      <── reports ──
                  scheduler.py (pure)
    rank 1 ...    tuple servers

    gpus.py, seating.py (pure)      which rank has which GPUs, which ranks a copy takes
    arrangement.py, sittings.py     both for a whole workflow, before it runs or without
    launch.py, sbatch.py            the mpiexec line, the Slurm script
"""
