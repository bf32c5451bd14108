"""Benchmarks: what is measured, against what, in the same run."""
