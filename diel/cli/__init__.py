"""The command line ``diel``: of a run it reads the run directory and nothing else."""
