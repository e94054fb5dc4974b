"""Container Device Interface: specifications of prepared claims, and their directory."""
