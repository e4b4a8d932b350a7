"""A node as a service of this user: systemd on Linux, launchd on macOS, and an upgrade that can go back."""
