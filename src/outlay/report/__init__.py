"""Say what is where: facts first (dataclasses), then text, JSON and HTML renderers that never compute."""
