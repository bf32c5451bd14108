"""Figures that leave a site beside models: each charged, or declared public; knows no torch; see README.md."""
