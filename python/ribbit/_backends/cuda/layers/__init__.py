"""What each layer launches; one writer per layer, with the stem of ``models/layers``."""
