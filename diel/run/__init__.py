"""The run directory: its only owner.

Rank 0 writes it, commands and pages read it and nothing else of a run.
"""
