"""Preserving: save the state of torch, of random numbers and of models, and put it back after other code has run."""
