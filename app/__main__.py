"""`python -m app` is the console script `picklog`; children of a process are started so."""

from app.cli import main

main()
