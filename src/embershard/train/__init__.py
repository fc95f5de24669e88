"""Training jobs: what they read, and in which order."""
