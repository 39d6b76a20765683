"""Streams of a run as its client sees them."""
