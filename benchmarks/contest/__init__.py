"""ratekit and its peers on one server: each in a process of its own, in turns, under the same loads."""
