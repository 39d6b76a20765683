"""An assistant that works beside the loop, in a thread or a process, over two bounded queues."""
