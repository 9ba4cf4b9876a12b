"""What a reader sees of each saved table: charts and claims. Pure functions of one table; no torch."""
