"""The architectures that a plan may name: shapes and first values without torch, modules with it."""
