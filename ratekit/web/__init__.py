"""From a request to a decision to an answer: what every front shares."""
