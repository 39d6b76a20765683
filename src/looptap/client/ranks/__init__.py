"""The ranks of a job: streams merged, clocks compared."""
