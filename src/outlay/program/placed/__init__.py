"""Parts of a graph as programs of their own, each on its devices."""
