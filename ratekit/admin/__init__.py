"""What operators do past the script: overrides, counters, explanations, the fleet's mode, doctor."""
