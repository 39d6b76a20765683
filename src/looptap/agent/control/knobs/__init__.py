"""The values that clients can set, and whether they last."""
