"""The subcommands of ``drakit``, one module each."""
