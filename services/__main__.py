"""`python -m allroads` is the command `allroads`."""

from .cli.main import main

main()
