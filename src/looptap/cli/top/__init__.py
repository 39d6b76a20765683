"""The screen of `looptap top`."""
