"""How much a step computes and how much memory it touches, counted in the traced and in the compiled program."""
