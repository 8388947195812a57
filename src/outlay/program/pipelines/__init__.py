"""A scan over layers executed as a pipeline, inside one program."""
