"""What torch does, turned into the events of an agent."""
