"""`python -m narwhal` is the `narwhal-trio` command."""

from narwhal.cli import main

if __name__ == "__main__":
    main(prog_name="narwhal-trio")
