"""Training under differential privacy with torch: the step and everything that it is made of; see README.md."""
