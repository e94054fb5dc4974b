"""The Node Resource Interface, plugin side: told of every container before it starts.

From the bottom: :mod:`~drakit.wire.nri.frames` (ttrpc frames), :mod:`~drakit.wire.nri.mux` (two
connections over one socket) and :mod:`~drakit.wire.nri.session` (calls and answers) are state
machines over bytes. :mod:`~drakit.wire.nri.values` are the pods, containers and adjustments a
driver sees, :mod:`~drakit.wire.nri.events` the calls a runtime makes, and
:mod:`~drakit.wire.nri.versions` what which runtime can do. :mod:`~drakit.wire.nri.transport` puts a
session on a socket, and :mod:`~drakit.wire.nri.plugin` stays connected for ever.
"""
