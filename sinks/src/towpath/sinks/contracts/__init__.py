"""Table contracts: what a migration does to row topics and to each sink."""
