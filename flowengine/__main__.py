"""`python -m flowengine` is the command `flowengine`."""

from flowengine.cli.main import main

if __name__ == "__main__":
    main(prog_name="flowengine")
