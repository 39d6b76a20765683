"""Hooks on modules of the job's model, while a query asks for their values."""
