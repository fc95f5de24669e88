"""What outlives the process: snapshots."""
