"""List and watch: the reflector and its local store."""
