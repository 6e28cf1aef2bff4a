"""Data: loading, splitting, preparing, cutting into batches."""
