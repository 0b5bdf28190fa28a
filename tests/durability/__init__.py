"""Runs that are killed or interrupted; their folders damaged, on full disks, read by others."""
