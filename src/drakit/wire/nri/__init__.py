"""Node Resource Interface (NRI), plugin side: the runtime calls the plugin before a container starts.

From the bottom: :mod:`~drakit.wire.nri.frames` (ttrpc frames), :mod:`~drakit.wire.nri.mux` (two connections
over one socket) and :mod:`~drakit.wire.nri.session` (calls and answers) are state machines over bytes.
:mod:`~drakit.wire.nri.values` are the pods, containers and adjustments that a driver uses,
:mod:`~drakit.wire.nri.event_table` and :mod:`~drakit.wire.nri.events` the calls of a runtime, and
:mod:`~drakit.wire.nri.versions` the capabilities of runtimes. :mod:`~drakit.wire.nri.transport` runs a
session on a socket, and :mod:`~drakit.wire.nri.plugin` stays connected.
"""
