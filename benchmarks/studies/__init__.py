"""The questions that are asked, one module per page of docs."""
