"""Mixtures of experts: each token goes through a few of many equal parts of a model, at the cost of those few."""
