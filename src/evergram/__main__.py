"""`python -m evergram …`, the command as a module, for `torchrun -m evergram …`."""

from evergram.cli import main

if __name__ == "__main__":
    main()
