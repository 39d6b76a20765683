"""Training thread: event types, attached queries, their cost, and their guards.

The path of an event, from `Agent.emit` to a value in a queue
1. `emit` looks the event's name up in a dict, and increments a count if nothing waits for events of this type.
   Where `tap` is compiled, C code does that, and what the shortcut of step 3 does; whatever else there is to do, it
   leaves to the Python function.
2. Else `EventSource.deliver` takes the lock of all types, ends the groups that the event encloses, and compares the
   `EvaluationPlan` with the present queries. Queries are replaced as a whole tuple, so that one `is` shows whether any
   was attached or detached. The plan splits them: *deferred* ones are arithmetic on a few numbers, *immediate* ones are
   anything else.
3. For the deferred ones the loop thread copies their numbers into the flat list of the plan, in one step. Some twenty
   events later the I/O thread evaluates them together, or the loop thread itself if they pile up: a query that runs
   after a training step finds cold caches and costs ten times as much, and a batch pays that once. The batch is columns
   (`EventBatch`): a query that only names observables hands them on as they are, and arithmetic, conditions and
   reductions are evaluated on them where that gives exactly what each event would (`in_columns`). An event without a
   plain number for one of these queries makes a plan in which that one is immediate, for a few events. Where keeping
   its numbers is all that an event entails, and be it only between those at which a query with `every=` is due, or for
   as long as the budget keeps events from all other queries, `EventSource.shortcut` is set, and steps 2 and 4 are left
   out.
4. For the immediate ones it makes the `Event`, runs the pending commands, then each query: charged to its
   `Account`, checked operation by operation unless it is arithmetic (`at_event`). Their values go to `ValueRing`s.
5. What a command leaves for afterwards (a pause, an exception for the host) is raised as `DeferredActions` out of the
   lock, since other threads may emit meanwhile; `Agent.emit` runs it.

Why in this order
- The number is incremented right before the numbers are kept, without a call in between: a signal handler that emits
  amid an event would otherwise overtake it, and deferred queries take no event that is below the newest they have seen.
- The event is recorded as delivered (`last_deferred`, `query.seen`) before it is evaluated, never after. Ctrl-C may
  come between any two instructions: then an event may be lost, which is counted, but never counts twice.
  `EventSource._finish` completes an interrupted event.
- A number is incremented in a slot without a lock: CPython switches threads only at calls and backward jumps, of which
  `slot += 1` has none. So the count of an idle type is exact from any thread.
- A value is appended before its ring is put into the ready set, and that before the wakeup: see `ReadySet`.
- Observables are cleared when the event ends, even if a query has kept the event: a tensor must not outlive its step.

What is spelled out twice for speed, and the row of docs/benchmarks.md that pays for it
- `Agent.emit`: the dict of `EventSources` as an attribute, in place of `EventSources.open`:
  "emit with 4 observables, no client attached".
- `EventSource.deliver`: a function made for the names (`row_maker`) in place of `copied_numbers`, and `acquire` in
  place of `with`: "a step with five streams", "step, loss: an event after a training step".
- `event_of`: the fields of an `Event`, in place of its constructor:
  "lambda e: (e.step, e.loss): an event, 50,000 in a row".
- `AttachedQuery.feed`: the query as a function of one event, in place of `Pipeline.push`:
  "lambda e: (e.step, e.loss): an event, 50,000 in a row".
- `in_columns`: a batch of numbers in one `put_all`, or one `push_many`, in place of `evaluate_at_event` for each:
  "step, loss: an event, 50,000 in a row", "mean(e.loss for e in events): an event, 50,000 in a row".
"""
