"""`coordinator`: see the README of this folder for what lives here."""
