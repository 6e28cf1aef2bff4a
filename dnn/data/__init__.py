"""Data sets: loading, splitting, preparing, augmenting, and cutting into batches."""
