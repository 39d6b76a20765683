"""A folder for PYTHONPATH whose `sitecustomize` starts looptap."""
