"""An assistant beside the loop, in a thread or process, over two bounded queues."""
