"""Resource models shared by the drivers: grouped and individual devices."""
