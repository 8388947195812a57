"""Soma models, which turn current into spikes."""
