"""``python -m diel`` is ``diel``."""

from diel.cli.main import main

if __name__ == "__main__":
    main()
