"""Training thread: event types, attached queries, their cost, and the guards around them."""
