"""Node capacity, pools, instance types, compatibility, shortages and start estimates."""
