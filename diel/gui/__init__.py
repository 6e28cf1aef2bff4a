"""``diel gui``, the page in a browser: it composes workflows, starts them and shows runs."""
