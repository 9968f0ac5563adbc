"""`python -m tune.cli`."""

from tune.cli.app import main

main()
