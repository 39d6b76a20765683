"""The compiled part of an event, in C, and the choice of pure Python instead."""
