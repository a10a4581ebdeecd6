"""Values and pure functions: what a limit is, what the script gets and answers. Imports nothing else of ratekit."""
