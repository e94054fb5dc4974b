"""Hugepage pools: how big they are to be, and making them so.

Two ways, which may be combined per node and size:

* **static**: the configuration names a pool's size. It is written, read back, and what was obtained is
  what is offered; the kernel gives less than asked for when memory is fragmented.
* **on demand**: the configuration names a growth budget. It is offered beside the pages that exist, its
  memory is not offered as memory, and pages are made when a claim gets them. They are given back later.

:mod:`plan` decides, without I/O; :mod:`files` reads and writes the kernel's numbers; :mod:`record`
remembers which pages are ours; :mod:`pools` puts them together.
"""
