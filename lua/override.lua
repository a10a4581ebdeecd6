--[[
ratekit: changes the override of a subject in one atomic step, so that no decision sees half of it.

KEYS
  override        the hash, as ratekit.lua reads it

ARGV
  ttl_ms          how long the hash lives from now; -1 for ever, 0 leaves that as it is
  last            position in ARGV of the last item to set
  field, value    to set, pair by pair
  field           to remove, one by one, until ARGV ends

Reply: how many fields were removed.

What is set is written first: a server whose memory is full refuses before anything has changed. A hash with no number left
is deleted, as a note alone is no override.
]]

local key, ttl_ms, last, removed = KEYS[1], ARGV[1] + 0, ARGV[2] + 0, 0

for at = 3, last, 2 do
  redis.call("HSET", key, ARGV[at], ARGV[at + 1])
end
for at = last + 1, #ARGV do
  removed = removed + redis.call("HDEL", key, ARGV[at])
end

local fields, numbers = redis.call("HGETALL", key), 0
for at = 1, #fields, 2 do
  local name = string.match(fields[at], "([^.]*)$")
  if name == "max_requests" or name == "expiry" or name == "burst" or name == "unlimited" then
    numbers = numbers + 1
  end
end

if numbers == 0 then
  redis.call("DEL", key)
elseif ttl_ms > 0 then
  redis.call("PEXPIRE", key, ttl_ms)
elseif ttl_ms < 0 then
  redis.call("PERSIST", key)
end
return removed
