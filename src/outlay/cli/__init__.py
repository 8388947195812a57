"""The command line: one file a command; heavy imports inside functions, so that `outlay --help` answers at once."""
