"""`python -m faultline` is the `faultline` command."""

from faultline.cli import main

if __name__ == "__main__":
    main()
