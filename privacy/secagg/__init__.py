"""Secure sums (suite FSA-1): the protocol, pure; see README.md."""
