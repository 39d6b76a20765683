"""Systems that measure or speed up training. Each is useful without an agent, and shows itself to one as attributes."""
