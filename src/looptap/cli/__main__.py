"""`python -m looptap.cli`: the same as `looptap`."""

from looptap.cli.entry_point import main

if __name__ == "__main__":
    main()
