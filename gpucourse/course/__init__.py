"""The command line: what the machine offers, running the lessons, reading what came of it, building the notebooks."""
