"""`looptap demo`: two training jobs, and queries to them."""
