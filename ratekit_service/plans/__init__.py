"""Plans: named sets of limits of a tenant."""
