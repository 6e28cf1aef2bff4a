"""Modules that come with diel: a master and trainers for hyperparameter sweeps.

Files here import each other relatively and diel and dnn by their public names, so the package
works under any name: a user's own folder called ``modules`` may stand beside it.
"""
