"""`python -m rackwright` is `rackwright`."""

from rackwright.cli import main

main()
