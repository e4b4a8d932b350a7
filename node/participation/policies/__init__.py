"""The built-in participation policies, one a file."""
