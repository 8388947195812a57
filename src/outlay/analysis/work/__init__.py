"""Count how much a step computes and how much memory it touches, in the traced and in the compiled program."""
