"""How long a step would take: its work over the speeds of a target, with everything that is assumed."""
