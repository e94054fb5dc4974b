"""Node Resource Interface (NRI), plugin side: the runtime calls the plugin before a container starts.

From the bottom: ``frames`` and ``mux`` (bytes), ``session`` (calls and answers), ``values``, ``event_table``
and ``events`` (pods, containers and calls), ``versions`` (capabilities of runtimes), ``transport`` (a session
on a socket), ``connection`` and ``plugin`` (stays connected).
"""
