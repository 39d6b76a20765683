"""Identity, advertisement, history and end of a run."""
