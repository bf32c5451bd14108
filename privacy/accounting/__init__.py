"""What a release costs and whether it may be made: pure functions, no I/O, no clock; see README.md."""
