"""Choose where the parts of a graph go: what each costs, a balanced placement, and whether it is worth it."""
