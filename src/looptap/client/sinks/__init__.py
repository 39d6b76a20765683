"""Live values of runs, on their way into the engine that a fleet's owners run."""
