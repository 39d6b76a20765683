"""Server without sockets: requests, sessions, subscriptions, declared streams."""
