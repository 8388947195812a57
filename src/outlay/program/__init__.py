"""Run a step under its plan: `Program`."""
