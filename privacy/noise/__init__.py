"""Sampling and noise from a keyed AES stream; knows no torch; see README.md."""
