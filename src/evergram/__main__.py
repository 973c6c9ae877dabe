"""The command as a module: `python -m evergram …`, or `torchrun -m evergram …`."""

from evergram.cli import main

if __name__ == "__main__":
    main()
