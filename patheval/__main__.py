"""`python -m patheval`: the same as the command `patheval`."""

from patheval.cli.main import main

if __name__ == "__main__":
    main()
