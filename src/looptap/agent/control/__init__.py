"""Commands: controls, triggers, pauses, and agreement between ranks."""
