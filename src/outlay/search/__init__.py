"""Which layout to take on a target: candidates, arithmetic, the real compiler, and why each loser lost."""
