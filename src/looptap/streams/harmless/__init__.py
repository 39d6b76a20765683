"""The facts of a proof: harmless types, functions and operators of torch."""
