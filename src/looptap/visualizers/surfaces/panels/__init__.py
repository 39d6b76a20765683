"""The knobs of a job beside its charts: as data, and drawn in a window."""
