"""What an array is, where it lives, how it is checked."""
