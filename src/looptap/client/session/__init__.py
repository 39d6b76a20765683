"""The conversation with one agent: requests, replies, callbacks."""
