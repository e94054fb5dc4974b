"""The Container Device Interface: how a prepared claim reaches the runtime.

:mod:`~drakit.wire.cdi.spec` says what a specification is, checks it and writes it the same way
every time; :mod:`~drakit.wire.cdi.directory` keeps one file per claim on disk;
:mod:`~drakit.testing.cdi` reads directories the way a runtime does.
"""
