"""Redis, Redis Cluster and Redis Sentinel, through redis-py or valkey-py."""
