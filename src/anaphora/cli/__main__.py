"""`python -m anaphora.cli`: the command line where the `anaphora` script is not on the path."""

from anaphora.cli.main import main

main()
