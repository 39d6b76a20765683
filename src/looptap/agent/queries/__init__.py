"""Client code compiled and attached to event types."""
