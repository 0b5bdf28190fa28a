"""Networks: layers, models made of them, ready-made ones."""
