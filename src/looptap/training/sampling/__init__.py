"""Drawing instances: their order, what is known of each, losses of single ones."""
