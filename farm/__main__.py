"""Run the command `farm` as `python -m farm`."""

from farm.cli import main

if __name__ == "__main__":
    main()
