"""Reference models: single-device code, without a mesh in sight."""
