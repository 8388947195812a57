"""Model files of Spark (Nogarx/Spark), `.scfg`, of every version."""
