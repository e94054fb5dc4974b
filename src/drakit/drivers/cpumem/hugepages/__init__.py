"""Hugepage pools: configured sizes, and growth on demand.

A configured size is written and read back, and the result is offered: the kernel allocates fewer pages than
requested if memory is fragmented. A growth budget is offered in addition to the existing pages and is not
offered as memory; its pages are allocated when a claim is prepared, and returned later.
"""
