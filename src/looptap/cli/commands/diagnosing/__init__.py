"""Commands that show what the process of a job does: stacks, a profile, memory."""
