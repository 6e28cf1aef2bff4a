"""Networks in other libraries' forms."""
