"""What is computed: shapes, data, the expected answer, the goal."""
