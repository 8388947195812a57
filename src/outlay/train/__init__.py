"""Train over any mesh: the step, data by global step, evaluation, the loop, and the folder that a run leaves behind."""
