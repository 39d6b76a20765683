"""Save and restore the state of torch, random numbers and models around code."""
