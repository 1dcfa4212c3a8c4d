"""`python -m pfl_ops`: the command line without its script, for an interpreter that is chosen by its path."""

from pfl_ops.cli import main

if __name__ == "__main__":
    main()
