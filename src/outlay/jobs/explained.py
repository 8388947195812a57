"""The end of a program that has said why: nobody needs to be told where in it that was."""


class Explained(SystemExit):
    """Ends a command with an exit code, after what it printed has told the reason."""
