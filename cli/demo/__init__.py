"""`looptap demo`: two training jobs and what can be asked of them."""
