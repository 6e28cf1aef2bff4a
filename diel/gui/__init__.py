"""The page in a browser: it composes workflows, starts them and shows runs (``diel gui``)."""
