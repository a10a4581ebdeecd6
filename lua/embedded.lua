--[[
The Redis commands that ratekit uses, in memory: runs lua/ratekit.lua inside the process.

Loaded with the script's text, the most counters to hold, and a random number; returns these functions:
  prepare(version, operation, ..., cost)
                              makes the ARGV of one request for later calls, with the cost moved to its place
  run(now_us, arguments, cost, key, key, key)
                              runs the script with a prepared ARGV, this cost, and one or three KEYS: the fast path for a
                              policy of one limit. Returns the six items of the reply
  run_tiers(now_us, arguments, cost, ...)
                              the same as run with at most nine KEYS. Returns all items of the reply
  run_any(now_us, count, ...) runs the script as Redis does: the given count of KEYS, then ARGV. Returns all items of the
                              reply
  weigh(count, ...)           notes how much counters have used: the given count of state KEYS, then the reply of run_any
  execute(now_us, name, ...)  runs one command, for administration. Returns its reply, a table with err if it failed
  size()                      returns how many keys are held, including expired ones that were not yet dropped

Numbers are stored as numbers: no script may depend on their text. Every call drops some expired keys, at least as many as
it can create, so expired keys do not pile up.

Keys that the script writes are counters, and their number is bounded. At the bound, a call first drops expired counters,
then those that have used the smallest part of their limit. So counters of new subjects displace each other, and not the
counter of a subject that was refused. What `execute` writes (overrides, modes, reports) is never dropped to make room.

No single step takes long however many keys there are. Lua builds a table anew when it is full, so the keys are spread
over many tables, and lists are handed over rather than copied.
]]

local source, most_counters, seed = ...
local floor, ceil, byte = math.floor, math.ceil, string.byte

local WRONG_TYPE = { err = "WRONGTYPE Operation against a key holding the wrong kind of value" }
local SHARDS, MOST_RECENT = 64, 32768
local EXHAUSTED = 5 -- the highest rank; ranks 1 to 4 are the quarters of a limit that a counter has used
local MOST_EXAMINED = 8
local RESERVED, RESERVED_FROM = 262144, 8192 -- strings, and the number of keys from which on they are made

-- The collector starts early, as strings that nobody uses any more fill the table of strings too, and ends soon, as it
-- marks in one go what has changed while it marked the rest.
pcall(collectgarbage, "setpause", 120)
pcall(collectgarbage, "setstepmul", 1000)

local now_us = 0
local is_script = false -- whether a key that is added now is a counter
local shards, recent, recent_count = {}, {}, 0
local count, counters = 0, 0

-- Lists of entries. An entry knows its place in each, so that it is removed without a search.
local ranked, hands, due, overdue, swept = {}, {}, {}, {}, 0

local function clear()
  for index = 1, SHARDS do
    shards[index] = {}
  end
  for rank = 1, EXHAUSTED do
    ranked[rank], hands[rank] = { size = 0 }, 0
  end
  recent, recent_count, count, counters = {}, 0, 0, 0
  due, overdue = {}, {}
end
clear()

-- LuaJIT keeps every string in one table, and builds it anew when it is full: at 262 144 strings in 43 to 77 ms, if they
-- lie apart as keys do. So a store with many keys has it built before that, from strings that lie side by side, in 23 to
-- 37 ms. All were measured on a busy machine.
-- Half of these are kept: they hold the table at its size, which is enough for 250 000 counters and their garbage.
local reserve, reserved = {}, 0

local function reserve_strings()
  for number = reserved, reserved + 31 do
    local chunk = floor(number / 1024) + 1
    reserve[chunk] = reserve[chunk] or {}
    reserve[chunk][number % 1024 + 1] = string.char(0, floor(number / 65536), floor(number / 256) % 256, number % 256)
  end
  reserved = reserved + 32
  if reserved == RESERVED then
    for chunk = RESERVED / 2048 + 1, RESERVED / 1024 do
      reserve[chunk] = nil
    end
  end
end

local function append(list, entry, at)
  local size = list.size + 1
  list.size, list[size], entry[at] = size, entry, size
end

local function take_out(list, entry, at)
  local size, place = list.size, entry[at]
  local last = list[size]
  list[place], last[at] = last, place
  list[size], list.size = nil, size - 1
end

-- Finds the table of a key by a polynomial hash of its bytes, whose base is random: nobody can aim at one table.
local function shard_of(key)
  local hash = #key
  for at = 1, #key, 4 do
    local a, b, c, d = byte(key, at, at + 3)
    hash = (hash * seed + a + 256 * (b or 0) + 65536 * (c or 0) + 16777216 * (d or 0)) % 2147483647
  end
  return shards[hash % SHARDS + 1]
end

-- Keys that came a moment ago are remembered, with false for a key that does not exist: most overrides do not.
local function remember(key, entry)
  if recent[key] == nil then
    if recent_count >= MOST_RECENT then
      recent, recent_count = {}, 0
    end
    recent_count = recent_count + 1
  end
  recent[key] = entry
end

local function lookup(key)
  local entry = recent[key]
  if entry == nil then
    entry = shard_of(key)[key] or false
    remember(key, entry)
  end
  return entry
end

local function drop(entry)
  local key = entry.key
  shard_of(key)[key], count = nil, count - 1
  remember(key, false)
  if entry.rank then
    take_out(ranked[entry.rank], entry, "rank_at")
    counters = counters - 1
  end
  if entry.due then
    take_out(entry.due, entry, "due_at")
  end
end

local function drop_key(key)
  local entry = lookup(key)
  if entry then
    drop(entry)
  end
end

local function schedule(entry)
  local second = ceil(entry.expires_us / 1000000)
  local list = due[second]
  if not list then
    list = { size = 0 }
    due[second] = list
  end
  entry.due = list
  append(list, entry, "due_at")
end

local function take_due(second)
  overdue[#overdue + 1], due[second] = due[second], nil
end

-- Takes the lists of each second that has passed. After a jump of the clock it is cheaper to visit the seconds with lists.
local function advance(second)
  if second < swept or second - swept > 1000 then
    local passed = {}
    for known in pairs(due) do
      passed[#passed + 1] = known <= second and known or nil
    end
    for _, known in ipairs(passed) do
      take_due(known)
    end
  else
    for passed = swept + 1, second do
      take_due(passed)
    end
  end
  swept = second
end

-- Drops an entry of a second that has passed, or notes it for another second if it has got more time.
local function drop_or_schedule(entry)
  if entry.expires_us and entry.expires_us <= now_us then
    drop(entry)
    return
  end
  take_out(entry.due, entry, "due_at")
  entry.due = false
  if entry.expires_us then
    schedule(entry)
  end
end

local function sweep(most)
  local second = floor(now_us / 1000000)
  if second ~= swept then
    advance(second)
  end
  local list = overdue[#overdue]
  while list and most > 0 do
    if list.size > 0 then
      drop_or_schedule(list[list.size])
      most = most - 1
    else
      overdue[#overdue] = nil
      list = overdue[#overdue]
    end
  end
end

-- Drops one counter of the lowest rank there is: of a few, the one that ends first. The hand goes round, so that counters
-- are examined about as often.
local function evict()
  local rank = 1
  while ranked[rank].size == 0 do
    rank = rank + 1
  end
  local list, victim = ranked[rank], nil
  for _ = 1, MOST_EXAMINED do
    hands[rank] = hands[rank] % list.size + 1
    local entry = list[hands[rank]]
    if not victim or (entry.expires_us or 0) < (victim.expires_us or 0) then
      victim = entry
    end
  end
  drop(victim)
end

-- Makes room for the counters that a call may add. Not while the script runs: it must find again what it has read.
local function make_room(most_added)
  sweep(4 * most_added)
  while counters > 0 and counters + most_added > most_counters do
    evict()
  end
end

-- Raises the rank of a counter by what a limit has answered.
local function raise(key, flags, max, used)
  local rank = (flags % 2 == 0 or used >= max) and EXHAUSTED or floor(4 * used / max) + 1
  local entry = lookup(key)
  if entry and entry.rank and entry.rank < rank then
    take_out(ranked[entry.rank], entry, "rank_at")
    entry.rank = rank
    append(ranked[rank], entry, "rank_at")
  end
end

local function weigh(count_of_keys, ...)
  local items = { ... }
  for index = 1, count_of_keys do
    local at = count_of_keys + 6 * index - 5
    local flags, max, used = items[at], items[at + 1], items[at + 2]
    if flags % 2 == 0 or 4 * used >= max then
      raise(items[index], flags, max, used)
    end
  end
end

local function find(key)
  local entry = lookup(key)
  if entry and entry.expires_us and entry.expires_us <= now_us then
    drop(entry)
    return nil
  end
  return entry or nil
end

local function find_or_add(key, kind, value)
  local entry = find(key)
  if not entry then
    -- All fields at once: Lua would build the table anew for a later one.
    entry = { key = key, kind = kind, value = value, expires_us = false, rank = false, rank_at = 0, due = false, due_at = 0 }
    shard_of(key)[key], count = entry, count + 1
    remember(key, entry)
    if jit and count > RESERVED_FROM and reserved < RESERVED then
      reserve_strings()
    end
    if is_script then
      entry.rank, counters = 1, counters + 1
      append(ranked[1], entry, "rank_at")
    end
  end
  return entry
end

-- A sorted set: two parallel lists from first to last, ordered by score, then member, and the score of each member.
local function new_set()
  return { members = {}, scores = {}, by_member = {}, first = 1, last = 0 }
end

-- Returns the first position that is not before (score, member).
local function position(set, score, member)
  local low, high = set.first, set.last + 1
  while low < high do
    local middle = floor((low + high) / 2)
    local at = set.scores[middle]
    if at < score or (at == score and set.members[middle] < member) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local function insert(set, score, member)
  local at = position(set, score, member)
  for index = set.last, at, -1 do
    set.members[index + 1], set.scores[index + 1] = set.members[index], set.scores[index]
  end
  set.members[at], set.scores[at], set.by_member[member] = member, score, score
  set.last = set.last + 1
end

local function remove(set, member)
  local score = set.by_member[member]
  if not score then
    return 0
  end
  for index = position(set, score, member), set.last do
    set.members[index], set.scores[index] = set.members[index + 1], set.scores[index + 1]
  end
  set.by_member[member], set.last = nil, set.last - 1
  return 1
end

local function is_before(set, at, score, member)
  local other = set.scores[at]
  return not other or other < score or (other == score and set.members[at] < member)
end

-- Changes the score of a member in place if the order allows it. Returns whether it did.
local function update(set, score, member)
  local old = set.by_member[member]
  if not old then
    return false
  end
  local at = position(set, old, member)
  local next_score = set.scores[at + 1]
  local fits_after = not next_score or next_score > score or (next_score == score and set.members[at + 1] > member)
  if not fits_after or (at > set.first and not is_before(set, at - 1, score, member)) then
    return false
  end
  set.scores[at], set.by_member[member] = score, score
  return true
end

-- Returns the positions of the first and last score within two bounds, each a number, "-inf", "+inf" or "(" and a number.
local function bounds(set, low, high)
  local from, to = set.first, set.last
  if low ~= "-inf" then
    local is_open = string.sub(low, 1, 1) == "("
    local score = tonumber(is_open and string.sub(low, 2) or low)
    from = position(set, score, "")
    while is_open and set.scores[from] == score do
      from = from + 1
    end
  end
  if high ~= "+inf" then
    local score = tonumber(high)
    to = position(set, score, "") - 1
    while set.scores[to + 1] == score do
      to = to + 1
    end
  end
  return from, to
end

local function slice(set, from, to, with_scores)
  local result = {}
  for index = from, to do
    result[#result + 1] = set.members[index]
    if with_scores then
      result[#result + 1] = set.scores[index]
    end
  end
  return result
end

local function set_of(key)
  local entry = find(key)
  if entry and entry.kind ~= "zset" then
    return nil, WRONG_TYPE
  end
  return entry and entry.value or new_set()
end

local commands = {}

function commands.TIME()
  return { floor(now_us / 1000000), now_us % 1000000 }
end

function commands.HMGET(key, a, b, c, d)
  local entry = find(key)
  if not entry then
    return { false, false, false, false }
  elseif entry.kind ~= "hash" then
    return WRONG_TYPE
  end
  local fields = entry.value
  return { fields[a] or false, fields[b] or false, c and fields[c] or false, d and fields[d] or false }
end

function commands.HGET(key, field)
  local reply = commands.HMGET(key, field, field)
  return reply.err and reply or reply[1]
end

function commands.HGETALL(key)
  local entry, reply = find(key), {}
  if not entry then
    return reply
  elseif entry.kind ~= "hash" then
    return WRONG_TYPE
  end
  for field, value in pairs(entry.value) do
    reply[#reply + 1] = field
    reply[#reply + 1] = type(value) == "number" and string.format("%.17g", value) or value
  end
  return reply
end

-- Sets field by field: a table of the arguments would be slow to create.
function commands.HSET(key, field, value, field_2, value_2, field_3, value_3, field_4, value_4, ...)
  local entry = find_or_add(key, "hash", {})
  if entry.kind ~= "hash" then
    return WRONG_TYPE
  end
  local fields = entry.value
  fields[field] = value
  if field_2 then
    fields[field_2] = value_2
  end
  if field_3 then
    fields[field_3] = value_3
  end
  if field_4 then
    fields[field_4] = value_4
  end
  if select("#", ...) > 0 then
    return commands.HSET(key, ...)
  end
  return 1
end

function commands.HDEL(key, ...)
  local entry, removed = find(key), 0
  if entry and entry.kind ~= "hash" then
    return WRONG_TYPE
  end
  for _, field in ipairs(entry and { ... } or {}) do
    if entry.value[field] ~= nil then
      entry.value[field], removed = nil, removed + 1
    end
  end
  if entry and next(entry.value) == nil then
    drop_key(key)
  end
  return removed
end

function commands.HINCRBY(key, field, amount)
  local entry = find_or_add(key, "hash", {})
  if entry.kind ~= "hash" then
    return WRONG_TYPE
  end
  local value = (tonumber(entry.value[field]) or 0) + amount
  entry.value[field] = value
  return value
end

function commands.DEL(...)
  local removed = 0
  for _, key in ipairs({ ... }) do
    local entry = find(key)
    if entry then
      drop(entry)
      removed = removed + 1
    end
  end
  return removed
end

function commands.EXISTS(key, other)
  return (find(key) and 1 or 0) + (other and find(other) and 1 or 0)
end

function commands.PEXPIRE(key, ms)
  local entry = find(key)
  if not entry then
    return 0
  end
  entry.expires_us = now_us + ms * 1000
  if not entry.due then
    schedule(entry)
  end
  return 1
end

function commands.PERSIST(key)
  local entry = find(key)
  if not (entry and entry.expires_us) then
    return 0
  end
  entry.expires_us = false
  return 1
end

function commands.PTTL(key)
  local entry = find(key)
  if not entry then
    return -2
  end
  return entry.expires_us and ceil((entry.expires_us - now_us) / 1000) or -1
end

-- Returns every key that starts with a prefix, in no order.
function commands.KEYS(prefix)
  local reply = {}
  for index = 1, SHARDS do
    for key in pairs(shards[index]) do
      if string.sub(key, 1, #prefix) == prefix then
        reply[#reply + 1] = key
      end
    end
  end
  return reply
end

-- Turns a Redis pattern into a Lua pattern. It may contain "*", "?", and "\\" before a character to be taken literally.
local function lua_pattern(glob)
  local pattern, at = { "^" }, 1
  while at <= #glob do
    local char = string.sub(glob, at, at)
    if char == "\\" and at < #glob then
      at = at + 1
      char = string.sub(glob, at, at)
    elseif char == "*" or char == "?" then
      char = nil
    end
    pattern[#pattern + 1] = char and string.gsub(char, "%W", "%%%0") or string.sub(glob, at, at) == "*" and ".*" or "."
    at = at + 1
  end
  return table.concat(pattern) .. "$"
end

-- Returns all matching keys in one page: the next cursor is 0, the end.
function commands.SCAN(_, _, glob)
  local reply, pattern = {}, lua_pattern(glob)
  for index = 1, SHARDS do
    for key in pairs(shards[index]) do
      if string.find(key, pattern) and find(key) then
        reply[#reply + 1] = key
      end
    end
  end
  return { "0", reply }
end

function commands.FLUSHALL()
  clear()
  return "OK"
end

function commands.ZADD(key, score, member)
  local entry = find_or_add(key, "zset", new_set())
  if entry.kind ~= "zset" then
    return WRONG_TYPE
  end
  score = tonumber(score)
  if update(entry.value, score, member) then
    return 0
  end
  local replaced = remove(entry.value, member)
  insert(entry.value, score, member)
  return 1 - replaced
end

function commands.ZREM(key, member)
  local set, fault = set_of(key)
  if fault then
    return fault
  end
  local removed = remove(set, member)
  if set.last < set.first then
    drop_key(key)
  end
  return removed
end

function commands.ZREMRANGEBYSCORE(key, low, high)
  local set, fault = set_of(key)
  if fault then
    return fault
  end
  local from, to = bounds(set, low, high)
  if from == set.first then
    -- The oldest entries are removed without moving the rest.
    for index = from, to do
      set.by_member[set.members[index]], set.members[index], set.scores[index] = nil, nil, nil
    end
    set.first = math.max(to + 1, from)
  else
    for _, member in ipairs(slice(set, from, to)) do
      remove(set, member)
    end
  end
  if set.last < set.first then
    drop_key(key)
  end
  return math.max(to - from + 1, 0)
end

function commands.ZCARD(key)
  local set, fault = set_of(key)
  return fault or set.last - set.first + 1
end

function commands.ZCOUNT(key, low, high)
  local set, fault = set_of(key)
  if fault then
    return fault
  end
  local from, to = bounds(set, low, high)
  return math.max(to - from + 1, 0)
end

function commands.ZSCORE(key, member)
  local set, fault = set_of(key)
  return fault or set.by_member[member] or false
end

function commands.ZRANK(key, member)
  local set, fault = set_of(key)
  if fault then
    return fault
  end
  local score = set.by_member[member]
  return score and position(set, score, member) - set.first or false
end

function commands.ZRANGE(key, start, stop, with_scores)
  local set, fault = set_of(key)
  if fault then
    return fault
  end
  local size = set.last - set.first + 1
  start, stop = start < 0 and start + size or start, stop < 0 and stop + size or stop
  return slice(set, set.first + math.max(start, 0), math.min(set.first + stop, set.last), with_scores)
end

function commands.ZRANGEBYSCORE(key, low, high, with_scores, _, offset, most)
  local set, fault = set_of(key)
  if fault then
    return fault
  end
  local from, to = bounds(set, low, high)
  if most then
    from = from + offset
    to = math.min(to, from + most - 1)
  end
  return slice(set, from, to, with_scores)
end

local function pcall_command(name, ...)
  return commands[name](...)
end

local function call_command(name, ...)
  local reply = commands[name](...)
  if type(reply) == "table" and reply.err then
    error(reply, 0)
  end
  return reply
end

-- The globals of the script: the same as in Redis, so that a stray global is an error here too.
local environment = setmetatable({
  KEYS = {},
  ARGV = { "define" },
  redis = { pcall = pcall_command, call = call_command },
  tonumber = tonumber,
  tostring = tostring,
  type = type,
  error = error,
  pcall = pcall,
  math = math,
  string = string,
}, {
  __index = function(_, name)
    error("the script reads an undefined global: " .. tostring(name), 2)
  end,
  __newindex = function(_, name)
    error("the script writes a global: " .. tostring(name), 2)
  end,
})

local function compile(text, name)
  if setfenv then
    return setfenv(assert(loadstring(text, name)), environment)
  end
  return assert(load(text, name, "t", environment))
end

local script = compile(source, "=ratekit.lua")()

local unpack = unpack or table.unpack
local keys, last_reply = environment.KEYS, nil

-- Returns where in KEYS the state of each limit stands that begins at a position in ARGV.
local function state_positions(arguments, at)
  local positions, key = {}, 0
  while arguments[at] do
    local flags = arguments[at]
    key = key + (flags % 4 >= 2 and 3 or 1)
    positions[#positions + 1] = key
    for _, flag in ipairs({ 64, 128, 256, 512 }) do
      at = at + (flags % (2 * flag) >= flag and 1 or 0)
    end
    at = at + (flags >= 1024 and 7 or 3)
  end
  return positions
end

-- Converts numbers once, so that the script does not read them from their text in every call.
local function prepare(version, operation, ...)
  local items, arguments = { ... }, { version, operation, policies = {} }
  arguments[3] = items[#items]
  for index = 1, #items - 1 do
    arguments[index + 3] = tonumber(items[index]) or items[index]
  end
  arguments.states = state_positions(arguments, 4)
  return arguments
end

-- No loops, no varargs here: LuaJIT compiles this function and the script's fast path into one straight trace.
local function run(now, arguments, cost, first_key, second_key, third_key)
  now_us, arguments[3], environment.ARGV, environment.KEYS, is_script = now, cost, arguments, keys, true
  keys[1], keys[2], keys[3] = first_key, second_key, third_key
  sweep(8)
  if counters + 8 > most_counters then
    make_room(8)
  end
  last_reply = script()
  local used = last_reply[3]
  if used and (4 * used >= last_reply[2] or last_reply[1] % 2 == 0) then
    raise(keys[arguments.states[1]], last_reply[1], last_reply[2], used)
  end
  return last_reply[1], last_reply[2], last_reply[3], last_reply[4], last_reply[5], last_reply[6]
end

local function run_tiers(now, arguments, cost, first_key, second_key, third_key, ...)
  keys[4], keys[5], keys[6], keys[7], keys[8], keys[9] = ...
  run(now, arguments, cost, first_key, second_key, third_key)
  for index = 2, last_reply[3] and #arguments.states or 0 do
    local at = 6 * index - 5
    local flags, max, used = last_reply[at], last_reply[at + 1], last_reply[at + 2]
    if 4 * used >= max or flags % 2 == 0 then
      raise(keys[arguments.states[index]], flags, max, used)
    end
  end
  return unpack(last_reply)
end

local function set_arguments(count_of_keys, ...)
  local items, some_keys, arguments = { ... }, {}, {}
  for index = 1, #items do
    if index <= count_of_keys then
      some_keys[index] = items[index]
    else
      arguments[index - count_of_keys] = items[index]
    end
  end
  environment.KEYS, environment.ARGV = some_keys, arguments
end

local function run_any(now, count_of_keys, ...)
  now_us, is_script = now, true
  set_arguments(count_of_keys, ...)
  make_room(count_of_keys)
  return unpack(script())
end

-- Runs another script, which has the store to itself while it runs.
function commands.EVAL(text, count_of_keys, ...)
  set_arguments(count_of_keys, ...)
  local ok, reply = pcall(compile(text, "=eval"))
  if not ok and not (type(reply) == "table" and reply.err) then
    error(reply, 0)
  end
  return reply
end

-- Commands with all their arguments, for administration. The script needs fewer, and is faster with the narrow ones.
local wide = {}

function wide.HMGET(key, ...)
  local entry, reply = find(key), {}
  if entry and entry.kind ~= "hash" then
    return WRONG_TYPE
  end
  for _, field in ipairs({ ... }) do
    reply[#reply + 1] = entry and entry.value[field] or false
  end
  return reply
end

-- With NX, GT or LT before the pairs, a member that exists keeps its score if the option prefers it.
function wide.ZADD(key, option, ...)
  local arguments, added = { ... }, 0
  if option ~= "NX" and option ~= "GT" and option ~= "LT" then
    table.insert(arguments, 1, option)
    option = nil
  end
  for at = 1, #arguments, 2 do
    local score, member = tonumber(arguments[at]), arguments[at + 1]
    local old = commands.ZSCORE(key, member)
    if type(old) == "table" then
      return old
    end
    local is_kept = old and (option == "NX" or (option == "GT" and old >= score) or (option == "LT" and old <= score))
    if not is_kept then
      added = added + commands.ZADD(key, score, member)
    end
  end
  return added
end

function wide.ZINCRBY(key, amount, member)
  local old = commands.ZSCORE(key, member)
  if type(old) == "table" then
    return old
  end
  commands.ZADD(key, (old or 0) + amount, member)
  return (old or 0) + amount
end

function wide.ZREM(key, ...)
  local removed = 0
  for _, member in ipairs({ ... }) do
    local reply = commands.ZREM(key, member)
    if type(reply) == "table" then
      return reply
    end
    removed = removed + reply
  end
  return removed
end

local function execute(now, name, ...)
  now_us, is_script = now, false
  sweep(4)
  return (wide[name] or commands[name])(...)
end

local function size()
  return count
end

return prepare, run, run_tiers, run_any, weigh, execute, size
