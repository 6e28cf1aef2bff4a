"""The command line: it reads the run directory and nothing else of a run."""
