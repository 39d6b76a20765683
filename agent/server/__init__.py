"""Answers to clients: requests, sessions, subscriptions, declared streams. No sockets."""
