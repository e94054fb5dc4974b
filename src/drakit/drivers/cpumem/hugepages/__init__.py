"""Hugepage pools: configured sizes, and growth on demand.

Both can be combined per node and size:

* **static**: the configuration has the pool's size. It is written and read back, and the result is
  offered: the kernel allocates fewer pages than requested if memory is fragmented.
* **on demand**: the configuration has a growth budget. It is offered in addition to the existing pages,
  its memory is not offered as memory, and pages are allocated when a claim is prepared. They are returned
  later.

:mod:`plan` decides, without I/O; :mod:`files` reads and writes the kernel's numbers; :mod:`record`
stores which pages the driver added; :mod:`pools` combines them.
"""
