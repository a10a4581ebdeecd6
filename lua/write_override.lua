--[[
ratekit: changes the override of a subject in one atomic step, so that no decision sees half of the change.

KEYS
  override        the hash that ratekit.lua reads

ARGV
  ttl_ms          time to live of the hash from now on; -1 for ever, 0 leaves it unchanged
  last            position in ARGV of the last item to set
  field, value    to set, pair by pair
  field           to remove, one by one, until ARGV ends

Reply: how many fields were removed.

Fields are set before others are removed: a server whose memory is full refuses the call before anything has changed. A
hash without any number is deleted, as a note alone is no override.
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
