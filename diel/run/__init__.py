"""The run directory: its only owner.

Rank 0 writes it, every face of the project reads it and nothing else of a run.
"""
