"""What a Brain is fed: arrays, files, functions of the step, an environment."""
