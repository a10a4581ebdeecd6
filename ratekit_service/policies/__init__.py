"""Resource policies: which plan applies to which resources."""
