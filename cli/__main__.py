"""`python -m looptap.cli`: the same as `looptap`."""

from looptap.cli.start import main

if __name__ == "__main__":
    main()
