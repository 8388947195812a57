"""Put arrays where the plan says: born sharded, put, resharded."""
