"""Pictures of what a Brain did, from plain numbers."""
