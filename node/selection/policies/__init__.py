"""The built-in selection policies, one file each."""
