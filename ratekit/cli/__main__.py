"""`python -m ratekit.cli` is `ratekit`."""

from ratekit.cli import main

main()
