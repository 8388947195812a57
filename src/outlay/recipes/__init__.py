"""Ready workloads: the only place where models, data and layouts meet."""
