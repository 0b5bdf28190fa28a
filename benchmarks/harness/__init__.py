"""How an entry is run, timed and printed, whatever it computes."""
