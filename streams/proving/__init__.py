"""Check each operation of a query before it runs: none may change the job.

`rewriting` turns Python source into code that asks `operations` before each attribute, item, call, loop and operator.
`operations` lets through what is harmless on the exact types at hand (`known`), follows functions of the job by their
source (`following`), runs models on copies (`copies`), and refuses the rest before anything has happened. `watch` sees
the tensor operations of code that is not rewritten. `evaluation` is the frame around all of it.
"""
