"""Driver options: defaults, configuration file, environment variables and flags."""
