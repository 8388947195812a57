"""Spiking networks as graphs of modules: single-device code, which never sees a mesh."""
