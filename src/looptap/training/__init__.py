"""Systems that measure or speed up training, each useful without an agent."""
