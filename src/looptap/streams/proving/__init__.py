"""Check each operation of a query before it runs: none may change the job.

`rewriting` turns Python source into code that asks the operations of `calls` before each attribute, item, call, loop
and operator. They let through what is harmless on the exact types at hand (`known`), follow functions of the job by
their source (`following`), run models on copies (`copies`), and refuse the rest before anything has happened. `watch`
sees the tensor operations of code that is not rewritten. `checked_evaluation` is the frame around all of it.
"""
