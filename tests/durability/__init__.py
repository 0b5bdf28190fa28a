"""Runs in folders: killed, damaged, on full disks, watched by others."""
