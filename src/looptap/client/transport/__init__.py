"""Links to an agent: sockets, reconnects, failover to the next run."""
