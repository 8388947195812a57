"""Arrays where the plan says: born sharded, put, resharded; made from pieces and files; sliced, gathered, scattered."""
