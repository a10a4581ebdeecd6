--[[
The Redis commands that ratekit uses, in memory, for running lua/ratekit.lua in the process.

Loaded with the script's text; returns
  prepare(...)                 makes an ARGV of one request for later calls; its cost is left out, and put last
  run(now_us, arguments, cost, ...)
                               runs the script with a prepared ARGV, this cost, and these KEYS, at most two; returns the
                               first 6 items of the reply: one limit's answer
  run_tiers(now_us, arguments, cost, ...)
                               the same with at most eight KEYS; returns the items of the reply
  keep(arguments, cost, figures, ...)
                               makes a ticket for requests that come again: a prepared ARGV, a cost, how many items the
                               reply has, and KEYS
  run_kept(now_us, ...)        runs the script with each of these tickets; returns the items of their replies. Of one that
                               failed the first is the error, a string, and the others are false
  run_any(now_us, keys, ...)   runs the script with that many KEYS, then ARGV; returns the items of its reply
  execute(now_us, name, ...)   one command; returns its reply, a table with err if it failed
  size()                       how many keys are held, expired ones that were not yet dropped included

Numbers are stored as numbers: no script may depend on their text. Every call drops some keys whose time has come, at
least as many as it can create, so what is not used any more does not stay.
]]

local source = ...
local floor, ceil = math.floor, math.ceil

local WRONG_TYPE = { err = "WRONGTYPE Operation against a key holding the wrong kind of value" }

local now_us = 0
local entries = {} -- key -> { kind, value, expires_us }
local count = 0

-- Keys by a second in which to look at them, at most one for each; and those whose second has come.
local due, is_due, overdue, overdue_count, swept = {}, {}, {}, 0, 0

local function drop(key)
  if entries[key] then
    entries[key], count = nil, count - 1
  end
end

local function schedule(key, entry)
  local second = ceil(entry.expires_us / 1000000)
  local keys = due[second]
  if not keys then
    keys = {}
    due[second] = keys
  end
  keys[#keys + 1], is_due[key] = key, true
end

local function take_due(second)
  for _, key in ipairs(due[second] or {}) do
    overdue_count = overdue_count + 1
    overdue[overdue_count] = key
  end
  due[second] = nil
end

-- Seconds pass one by one; after a jump of the clock it is cheaper to look at those that hold keys.
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

local function sweep(most)
  local second = floor(now_us / 1000000)
  if second ~= swept then
    advance(second)
  end
  while overdue_count > 0 and most > 0 do
    local key = overdue[overdue_count]
    local entry = entries[key]
    overdue[overdue_count], overdue_count, most, is_due[key] = nil, overdue_count - 1, most - 1, nil
    if entry and entry.expires_us and entry.expires_us <= now_us then
      drop(key)
    elseif entry and entry.expires_us then
      schedule(key, entry)
    end
  end
end

local function find(key)
  local entry = entries[key]
  if entry and entry.expires_us and entry.expires_us <= now_us then
    drop(key)
    return nil
  end
  return entry
end

local function find_or_add(key, kind, value)
  local entry = find(key)
  if not entry then
    entry = { kind = kind, value = value }
    entries[key], count = entry, count + 1
  end
  return entry
end

-- A sorted set: two parallel lists from first to last, ordered by score, then member; and the score of each member.
local function new_set()
  return { members = {}, scores = {}, by_member = {}, first = 1, last = 0 }
end

-- The first position that is not before (score, member).
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

-- Gives a member another score where it stands, if its neighbours allow that.
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

-- Positions of the scores between two bounds, each a number, "-inf", "+inf" or "(" and a number.
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

-- Field by field: a list of the arguments would be slow to make.
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
    drop(key)
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
    if find(key) then
      drop(key)
      removed = removed + 1
    end
  end
  return removed
end

function commands.EXISTS(key)
  return find(key) and 1 or 0
end

function commands.PEXPIRE(key, ms)
  local entry = find(key)
  if not entry then
    return 0
  end
  entry.expires_us = now_us + ms * 1000
  if not is_due[key] then
    schedule(key, entry)
  end
  return 1
end

function commands.PERSIST(key)
  local entry = find(key)
  if not (entry and entry.expires_us) then
    return 0
  end
  entry.expires_us = nil
  return 1
end

function commands.PTTL(key)
  local entry = find(key)
  if not entry then
    return -2
  end
  return entry.expires_us and ceil((entry.expires_us - now_us) / 1000) or -1
end

-- Every key that starts with a prefix, in no order.
function commands.KEYS(prefix)
  local reply = {}
  for key in pairs(entries) do
    if string.sub(key, 1, #prefix) == prefix then
      reply[#reply + 1] = key
    end
  end
  return reply
end

-- Makes a Lua pattern of one of Redis' that has "*", "?" and "\\" to take the next character as it is.
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

-- The keys that match, all of them in one page: the cursor of the next one is 0, the end.
function commands.SCAN(_, _, glob)
  local reply, pattern = {}, lua_pattern(glob)
  for key in pairs(entries) do
    if string.find(key, pattern) and find(key) then
      reply[#reply + 1] = key
    end
  end
  return { "0", reply }
end

function commands.FLUSHALL()
  entries, count = {}, 0
  due, is_due, overdue, overdue_count = {}, {}, {}, 0
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
    drop(key)
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
    -- The oldest entries leave without the rest being moved.
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
    drop(key)
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

-- What the script may reach: the same as in Redis, so that a stray global is an error here too.
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

-- Numbers are numbers from the start, and not read from their text in every call.
local function prepare(version, operation, ...)
  local items, arguments = { ... }, { version, operation, policies = {} }
  arguments[3] = items[#items]
  for index = 1, #items - 1 do
    arguments[index + 3] = tonumber(items[index]) or items[index]
  end
  return arguments
end

-- No loop and no variable number of anything on this path: LuaJIT makes one straight trace of it and the script.
local function run(now, arguments, cost, first_key, second_key)
  now_us, arguments[3], environment.ARGV, environment.KEYS = now, cost, arguments, keys
  keys[1], keys[2] = first_key, second_key
  sweep(8)
  last_reply = script()
  return last_reply[1], last_reply[2], last_reply[3], last_reply[4], last_reply[5], last_reply[6]
end

local function run_tiers(now, arguments, cost, first_key, second_key, ...)
  keys[3], keys[4], keys[5], keys[6], keys[7], keys[8] = ...
  run(now, arguments, cost, first_key, second_key)
  return unpack(last_reply)
end

local function keep(arguments, cost, figures, ...)
  local ticket = { arguments = arguments, cost = cost, figures = figures, keys = { ... } }
  ticket.sweeps = math.max(8, 4 * #ticket.keys)
  return ticket
end

local function run_kept(now, ...)
  local tickets, replies, at = { ... }, {}, 0
  now_us = now
  for index = 1, #tickets do
    local ticket = tickets[index]
    local arguments = ticket.arguments
    sweep(ticket.sweeps)
    arguments[3], environment.ARGV, environment.KEYS = ticket.cost, arguments, ticket.keys
    local reply = script()
    for item = 1, ticket.figures do
      replies[at + item] = reply[item] or false
    end
    at = at + ticket.figures
  end
  return unpack(replies, 1, at)
end

local function give(count_of_keys, ...)
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
  now_us = now
  give(count_of_keys, ...)
  sweep(4 * count_of_keys)
  return unpack(script())
end

-- Another script, alone with the store while it runs.
function commands.EVAL(text, count_of_keys, ...)
  give(count_of_keys, ...)
  local ok, reply = pcall(compile(text, "=eval"))
  if not ok and not (type(reply) == "table" and reply.err) then
    error(reply, 0)
  end
  return reply
end

-- Commands in their whole width, for administration; the script gets by with less, and is faster for it.
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

-- With NX, GT or LT before the pairs, a member that is there keeps the score that the option prefers.
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
  now_us = now
  sweep(4)
  return (wide[name] or commands[name])(...)
end

local function size()
  return count
end

return prepare, run, run_tiers, keep, run_kept, run_any, execute, size
