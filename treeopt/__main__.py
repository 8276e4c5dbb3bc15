"""`python -m treeopt`: the command line without the installed script."""

from treeopt.cli import main

if __name__ == "__main__":
    main(prog_name="treeopt")
