"""ResourceSlices: layout, API limits, publishing."""
