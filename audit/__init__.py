"""`audit`: the signed, append-only log of who used which data, for what, under whose approval, at what privacy cost."""
