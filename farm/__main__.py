"""`python -m farm` is the command `farm`."""

from farm.cli import main

if __name__ == "__main__":
    main()
