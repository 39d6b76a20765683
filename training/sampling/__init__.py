"""Drawing instances: their order, what is known of each, and their losses one by one."""
