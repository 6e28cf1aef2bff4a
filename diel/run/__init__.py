"""The run directory: its files, and what can be read from them about a run.

Rank 0 writes it, commands and pages read it and nothing else of a run.
"""
