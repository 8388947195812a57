"""A Brain as a recipe: what goes in, what is recorded, how it runs and what the run leaves."""
