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
hash without any number is deleted, as a note alone is no override. One that only refuses until some time ends then.
]]

local key, ttl_ms, last, removed = KEYS[1], ARGV[1] + 0, ARGV[2] + 0, 0

for at = 3, last, 2 do
  redis.call("HSET", key, ARGV[at], ARGV[at + 1])
end
for at = last + 1, #ARGV do
  removed = removed + redis.call("HDEL", key, ARGV[at])
end

-- What ends by itself: the time until which a limit refuses everything, and the maximum of 0 beside it.
local fields, texts, lasting, latest = redis.call("HGETALL", key), {}, 0, 0
for at = 1, #fields, 2 do
  texts[fields[at]] = fields[at + 1]
end
for at = 1, #fields, 2 do
  local text, prefix, field = fields[at + 1], string.match(fields[at], "^(.-)([^.]*)$")
  local is_ban = field == "max_requests" and text == "0" and texts[prefix .. "until"]
  if field == "until" then
    latest = math.max(latest, tonumber(text) or 0)
  elseif field == "max_requests" or field == "expiry" or field == "burst" or field == "unlimited" then
    lasting = lasting + (is_ban and 0 or 1)
  end
end

local time = redis.call("TIME")
local left_ms = math.ceil(latest * 1000 - time[1] * 1000 - time[2] / 1000) + 1000
if lasting == 0 and left_ms <= 1000 then
  redis.call("DEL", key)
elseif ttl_ms > 0 then
  redis.call("PEXPIRE", key, ttl_ms)
elseif lasting == 0 then
  redis.call("PEXPIRE", key, left_ms)
elseif ttl_ms < 0 then
  redis.call("PERSIST", key)
end
return removed
