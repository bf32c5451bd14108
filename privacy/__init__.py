"""Differential privacy: noise, training, accounting. Imports nothing of the other packages; see README.md."""
