--[[
ratekit: decides a batch of rate-limit requests, one after the other, in one atomic call.

A policy is a list of limits decided together: a request refused by one enforced limit spends from none.
Times are integer microseconds (suffix _us), read from the server's clock once. Written for Lua 5.1, runs on 5.4.

KEYS, for each limit of each request, in order:
  override        only if the limit's flags say so: the hash of this subject's own numbers
  state           of the limit. The text after the last colon, up to an "@", is the limit's name, which
                  prefixes its fields in the override hash

ARGV
  version           of this protocol: "1"; "1@<us>" decides by that time instead of the server's
  for each request, until ARGV ends:
    operation       check, peek, charge, refund, acquire, renew, release or reset; with "@" and a random number in [0, 1)
                    after it if one of its limits is soft
    cost            how much it spends
    slot            id of the slot; only for acquire, renew and release
    for each limit of its policy (or, instead of them all, "-<position>": where they stand in an earlier request):
      flags         1 another limit follows + 2 brings an override key + 4 has the override of the limit before
                    + 8 its policy is not plain + 16 aligned + 32 shadow + 64 algorithm follows + 128 burst follows
                    + 256 soft follows
      max_requests  per window
      window_us     how long the window is
      algorithm     sliding_window_counter, sliding_window_log, token_bucket or concurrency, else it is fixed_window
      burst         capacity of a token bucket, else it is max_requests
      soft          fraction of the maximum above which requests are refused at random
A policy is plain if all its limits are fixed windows, enforced and not soft, and no two of them have the same key.

Override hash, all fields optional, for the limit that brings it (or "<limit>.<field>", for the limit of that name):
  max_requests    0 blocks
  expiry          window in seconds
  burst
  unlimited       1: this limit does not count and never refuses

Reply, one flat list; for each request:
  message         only if the server failed it: the error, a string; no limit follows and nothing was spent
  for each limit, integers:
    flags         1 admits + 2 overridden + 4 refused by the soft band + 8 unlimited + 16 override unreadable
    max_requests  effective maximum
    used          after this request, rounded down
    remaining     rounded down, never negative
    retry_us      0 if it admits, -1 if the cost can never fit, else the wait until it fits
    reset_us      until the window ends, the bucket is full, or the oldest entry or slot is free
The request is admitted if every limit that is no shadow admits.
]]

local now_us

-- Raises a server's error, which unwinds to the request that met it, and no further. Not as it is: the pcall of Redis 7
-- would make a text of it, which looks like a fault of this script.
local function expect(reply)
  if type(reply) == "table" and reply.err then
    error({ fault = tostring(reply.err) }, 0)
  end
  return reply
end

-- A fixed window is a hash: n used until e, the end of a window that was opened w us long; it keeps its end when the
-- limit changes. Returns what is used and how long the window lasts, 0 if none is open. If it ends further ahead than it
-- was long, it was opened before the clock was set back: then also how long it was.
local function read_window(key, window_us)
  local state = redis.pcall("HMGET", key, "n", "e")
  if state.err then
    expect(state)
  end
  local used, end_us = tonumber(state[1]), tonumber(state[2])
  if not (used and end_us and used % 1 == 0 and now_us < end_us) then
    return 0, 0, nil
  elseif end_us - now_us <= window_us then
    return used, end_us - now_us, nil
  end
  local length_us = tonumber(expect(redis.pcall("HGET", key, "w"))) or window_us
  return used, end_us - now_us, end_us - now_us > length_us and length_us or nil
end

--[[
The algorithms. A limit is a table: its numbers, and its state for the request at hand. Each algorithm is three functions:
  read(limit, key)      finds used, reset_us, slack (what of used fades in half a microsecond, which is as good as gone:
                        at most half a request), and clamped if a stored time lies ahead of the clock; writes nothing
  wait(limit, room)     microseconds until used <= room, within a quarter of one where used fades
  spend(limit, amount)  adds amount to what is used (negative: gives back) and stores it, with the clamp
]]

-- Returns the functions of an algorithm, or one that is not always needed. Redis runs this whole file for each call, and
-- making a function costs even if nobody calls it: so most of them are made in a branch of this one.
local function part(name)
  -- A key outlives the time that its state matters by a second; no expiry lies beyond a hundred years.
  if name == "expire" then
    return function(key, us)
      expect(redis.pcall("PEXPIRE", key, math.min(math.ceil(us / 1000) + 1000, 3155760000000)))
    end
  end

  -- Opens a fixed window of which something is used, and returns how long it lasts.
  if name == "open" then
    return function(key, used, length_us, aligned)
      local left_us = aligned and length_us - now_us % length_us or length_us
      expect(redis.pcall("HSET", key, "n", used, "e", now_us + left_us, "w", length_us))
      part("expire")(key, left_us)
      return left_us
    end
  end

  if name == "fixed_window" then
    local function read(limit, key)
      local length_us
      limit.used, limit.reset_us, length_us = read_window(key, limit.window_us)
      limit.running, limit.clamped, limit.length_us = limit.reset_us > 0, length_us ~= nil, length_us or limit.window_us
      if length_us then
        limit.reset_us = limit.aligned and length_us - now_us % length_us or length_us
      end
    end

    local function wait(limit)
      return limit.reset_us
    end

    local function spend(limit, amount)
      limit.used = limit.used + amount
      if limit.running and not limit.clamped then
        expect(redis.pcall("HINCRBY", limit.key, "n", amount))
      else
        limit.reset_us = part("open")(limit.key, limit.used, limit.length_us, limit.aligned)
      end
    end

    return read, wait, spend
  end

  -- Hash: c used in the window of w us that began at s, p in the one before, which fades out linearly.
  if name == "sliding_window_counter" then
    local function read(limit, key)
      local state = expect(redis.pcall("HMGET", key, "c", "p", "s", "w"))
      local current, previous = tonumber(state[1]), tonumber(state[2])
      local start_us, length_us = tonumber(state[3]), tonumber(state[4])
      local known = current and previous and start_us and length_us and current % 1 == 0 and previous >= 0
      limit.clamped = known and start_us > now_us
      start_us = limit.clamped and now_us or start_us
      limit.running = known and not limit.clamped and now_us < start_us + length_us
      if known and now_us >= start_us + length_us then
        current, previous, start_us, length_us = 0, current, start_us + length_us, limit.window_us
      end
      if not known or now_us >= start_us + length_us then
        current, previous, start_us, length_us = 0, 0, now_us, limit.window_us
      end
      local left_us = start_us + length_us - now_us
      limit.current, limit.previous, limit.length_us, limit.left_us = current, previous, length_us, left_us
      limit.used = previous > 0 and current + previous * left_us / length_us or current
      limit.slack = math.min(0.5 * previous / length_us, 0.5)
      limit.reset_us = current + previous > 0 and left_us or 0
    end

    local function wait(limit, room)
      local current, previous, length_us, window_us = limit.current, limit.previous, limit.length_us, limit.window_us
      if room >= current then
        return limit.left_us - (room - current) * length_us / previous - (previous > length_us and 0 or 0.25)
      end
      return limit.left_us + window_us * (1 - room / current) - (current > window_us and 0 or 0.25)
    end

    -- What is given back comes off the current window first.
    local function spend(limit, amount)
      local key, length_us, left_us = limit.key, limit.length_us, limit.left_us
      local current = math.max(limit.current + amount, 0)
      local rest = limit.current + amount - current
      local previous = math.max(limit.previous + rest * length_us / left_us, 0)
      previous = previous < 0.000001 and 0 or previous -- what is left by rounding is nothing
      limit.used, limit.reset_us = limit.used + amount, current + previous > 0 and left_us or 0
      if limit.running and rest == 0 then
        expect(redis.pcall("HINCRBY", key, "c", amount))
        return
      end
      expect(redis.pcall("HSET", key, "c", current, "p", previous, "s", now_us + left_us - length_us, "w", length_us))
      part("expire")(key, left_us + length_us)
    end

    return read, wait, spend
  end

  -- Sorted set: one entry "<total>:<cost>" per request, scored by its time. The total is the running sum of costs, so
  -- the sum over any stretch is a subtraction. It starts again from zero before numbers lose their last digit, at 2^52;
  -- two digits before it count how often, and it is padded, so that entries of one instant stay in order.
  if name == "sliding_window_log" then
    local function sum(from, to)
      return (to - from) % 4503599627370496
    end

    local function parse(entry)
      local turn, total, cost = string.match(entry[1] or "", "^(%d%d)(%d+):(%d+)$")
      local at_us = math.min(tonumber(entry[2]) or now_us, now_us)
      return tonumber(total) or 0, tonumber(cost) or 0, at_us, tonumber(turn) or 0
    end

    local function add(key, at_us, turn, total, cost)
      expect(redis.pcall("ZADD", key, at_us, string.format("%02.0f%016.0f:%.0f", turn, total, cost)))
    end

    local function read(limit, key)
      limit.since = string.format("(%.0f", now_us - limit.window_us)
      local newest = expect(redis.pcall("ZRANGE", key, -1, -1, "WITHSCORES"))
      local oldest = expect(redis.pcall("ZRANGEBYSCORE", key, limit.since, "+inf", "WITHSCORES", "LIMIT", 0, 1))
      local last, _, _, turn = parse(newest)
      limit.last, limit.turn, limit.oldest = last, turn, oldest[1]
      limit.clamped = (tonumber(newest[2]) or 0) > now_us
      local total, cost, at_us = parse(oldest)
      limit.used = cost > 0 and sum(total, limit.last) + cost or 0
      limit.base = total - cost
      limit.reset_us = cost > 0 and at_us + limit.window_us - now_us or 0
    end

    -- The first entry whose leaving makes enough room, by bisection over ranks.
    local function wait(limit, room)
      local key, goal = limit.key, limit.used - room
      local low, high = expect(redis.pcall("ZRANK", key, limit.oldest)), expect(redis.pcall("ZCARD", key)) - 1
      while low < high do
        local middle = math.floor((low + high) / 2)
        if sum(limit.base, parse(expect(redis.pcall("ZRANGE", key, middle, middle)))) >= goal then
          high = middle
        else
          low = middle + 1
        end
      end
      local _, _, at_us = parse(expect(redis.pcall("ZRANGE", key, low, low, "WITHSCORES")))
      return at_us + limit.window_us - now_us
    end

    -- What is given back comes off the newest entries.
    local function give_back(key, amount)
      while amount > 0 do
        local newest = expect(redis.pcall("ZRANGE", key, -1, -1, "WITHSCORES"))
        local total, cost, at_us, turn = parse(newest)
        if cost > amount then
          add(key, at_us, sum(amount, total) > total and turn - 1 or turn, sum(amount, total), cost - amount)
        end
        expect(redis.pcall("ZREM", key, newest[1]))
        amount = amount - cost
      end
    end

    local function clamp(key)
      local ahead = expect(redis.pcall("ZRANGEBYSCORE", key, string.format("(%.0f", now_us), "+inf"))
      for index = 1, #ahead do
        expect(redis.pcall("ZADD", key, now_us, ahead[index]))
      end
    end

    local function spend(limit, amount)
      local key, window_us = limit.key, limit.window_us
      if limit.clamped then
        clamp(key)
      end
      if amount > 0 then
        local total = sum(-amount, limit.last)
        add(key, now_us, total < limit.last and (limit.turn + 1) % 100 or limit.turn, total, amount)
        expect(redis.pcall("ZREMRANGEBYSCORE", key, "-inf", string.sub(limit.since, 2)))
      else
        give_back(key, -amount)
      end
      part("expire")(key, window_us)
      limit.reset_us = limit.used > 0 and limit.reset_us or window_us
      limit.used = limit.used + amount
      if limit.used == 0 then
        limit.reset_us = 0
      end
    end

    return read, wait, spend
  end

  -- Hash: u used at t. It drains at max_requests per window; a full bucket is one of which nothing is used.
  if name == "token_bucket" then
    local function drain_us(limit, amount)
      return limit.max > 0 and math.min(amount * limit.window_us / limit.max, 3155760000000000) or 0 -- a hundred years
    end

    local function read(limit, key)
      local state = expect(redis.pcall("HMGET", key, "u", "t"))
      local used, at_us = tonumber(state[1]), tonumber(state[2])
      if not (used and at_us and used >= 0 and used < 1e18) then
        used, at_us = 0, now_us
      end
      limit.clamped = at_us > now_us
      limit.used = math.max(used - math.max(now_us - at_us, 0) * limit.max / limit.window_us, 0)
      limit.slack = math.min(0.5 * limit.max / limit.window_us, 0.5)
      limit.reset_us = drain_us(limit, limit.used)
    end

    local function wait(limit, room)
      return drain_us(limit, limit.used - room) - (limit.max > limit.window_us and 0 or 0.25)
    end

    local function spend(limit, amount)
      limit.used = math.max(limit.used + amount, 0)
      limit.reset_us = drain_us(limit, limit.used)
      expect(redis.pcall("HSET", limit.key, "u", limit.used, "t", now_us))
      part("expire")(limit.key, limit.max > 0 and limit.reset_us or limit.window_us) -- blocked, nothing drains
    end

    return read, wait, spend
  end

  -- Sorted set: a slot's id, scored by the time at which a forgotten one is free again.
  if name == "concurrency" then
    local function read(limit, key, slot)
      local latest_us, from = now_us + limit.window_us, string.format("(%.0f", now_us)
      local oldest = expect(redis.pcall("ZRANGEBYSCORE", key, from, "+inf", "WITHSCORES", "LIMIT", 0, 1))
      local newest = expect(redis.pcall("ZRANGE", key, -1, -1, "WITHSCORES"))
      limit.slot, limit.latest_us = slot, latest_us
      limit.clamped = (tonumber(newest[2]) or 0) > latest_us
      limit.used = expect(redis.pcall("ZCOUNT", key, from, "+inf"))
      limit.reset_us = oldest[2] and math.min(tonumber(oldest[2]), latest_us) - now_us or 0
      limit.holds = slot and (tonumber(expect(redis.pcall("ZSCORE", key, slot))) or 0) > now_us
    end

    -- The end of the slot that makes room: not the next one if the maximum was lowered.
    local function wait(limit, room)
      local stale = expect(redis.pcall("ZCOUNT", limit.key, "-inf", string.format("%.0f", now_us)))
      local rank = stale + limit.used - math.floor(room) - 1
      local slot = expect(redis.pcall("ZRANGE", limit.key, rank, rank, "WITHSCORES"))
      return math.min(tonumber(slot[2]), limit.latest_us) - now_us
    end

    local function clamp(limit)
      local ahead = expect(redis.pcall("ZRANGEBYSCORE", limit.key, string.format("(%.0f", limit.latest_us), "+inf"))
      for index = 1, #ahead do
        expect(redis.pcall("ZADD", limit.key, limit.latest_us, ahead[index]))
      end
    end

    -- Amount 1 takes or renews the slot, -1 frees it, 0 stores the clamp only. A slot that was held may have been the
    -- oldest: then another one is now.
    local function spend(limit, amount)
      local key, held = limit.key, limit.holds
      if limit.clamped then
        clamp(limit)
      end
      if amount > 0 then
        expect(redis.pcall("ZADD", key, limit.latest_us, limit.slot))
      elseif amount < 0 then
        expect(redis.pcall("ZREM", key, limit.slot))
      end
      expect(redis.pcall("ZREMRANGEBYSCORE", key, "-inf", string.format("%.0f", now_us)))
      part("expire")(key, limit.window_us)
      if held then
        read(limit, key, limit.slot)
      elseif amount > 0 then
        limit.used, limit.reset_us = limit.used + 1, limit.used > 0 and limit.reset_us or limit.window_us
      end
    end

    return read, wait, spend
  end

  -- Gives a limit a subject's own numbers. A missing field leaves the limit's; so does an unreadable one.
  if name == "override" then
    return function(limit, reply)
      local prefix, fields, overridden, unreadable = string.match(limit.key, "^.*:([^:@]*)") .. ".", {}, 0, 0
      if reply.err and not string.find(tostring(reply.err), "WRONGTYPE", 1, true) then
        error({ fault = tostring(reply.err) }, 0)
      elseif reply.err then
        unreadable = 16
      end
      for index = 1, #reply, 2 do
        fields[reply[index]] = reply[index + 1]
      end

      local function number(field, pattern, least, most)
        local text = fields[prefix .. field] or (limit.flags % 4 >= 2 and fields[field])
        local value = text and #text <= 32 and string.match(text, pattern) and tonumber(text)
        if value and value >= least and value <= most then
          overridden = 2
          return value
        end
        unreadable = text and 16 or unreadable
      end

      local max = number("max_requests", "^%d+$", 0, 1000000000000) or limit.max
      local burst = number("burst", "^%d+$", 1, 1000000000000) or limit.flags % 256 >= 128 and limit.capacity
      local expiry = number("expiry", "^%d+%.?%d*$", 0.000001, 315576000)
      limit.own = { limit.max, limit.capacity, limit.window_us }
      limit.max, limit.capacity = max, limit.algorithm == "token_bucket" and max > 0 and burst or max
      limit.window_us = expiry and math.floor(expiry * 1000000 + 0.5) or limit.window_us
      limit.unlimited = number("unlimited", "^[01]$", 0, 1) == 1
      limit.changed = overridden + unreadable + (limit.unlimited and 8 or 0)
    end
  end

  -- Takes back what an override or a soft refusal has left on a limit that an earlier request used.
  if name == "restore" then
    return function(limit)
      local own = limit.own or { limit.max, limit.capacity, limit.window_us }
      limit.max, limit.capacity, limit.window_us = own[1], own[2], own[3]
      limit.changed, limit.unlimited = nil, nil
    end
  end

  -- Reads a limit that is not a plain one. An unlimited one is not read at all; one that is reset is deleted first; a
  -- shadow that cannot be read does not count, as it must not fail the others.
  if name == "read" then
    return function(limit, operation, slot)
      local ok, fault = true, nil
      if operation == "reset" then
        expect(redis.pcall("DEL", limit.key))
      end
      if limit.shadow and not limit.unlimited then
        ok, fault = pcall(limit.read, limit, limit.key, slot)
      elseif not limit.unlimited then
        limit.read(limit, limit.key, slot)
      end
      if not ok and type(fault) ~= "table" then
        error(fault, 0)
      end
      if not ok then
        limit.own = limit.own or { limit.max, limit.capacity, limit.window_us }
        limit.unlimited, limit.changed = true, 8 + 16
      end
      if limit.unlimited then
        limit.used, limit.reset_us, limit.clamped, limit.holds, limit.slot = 0, 0, false, false, nil
      end
    end
  end

  -- Returns whether a cost fits beside what is used; if not, also how much may be used when it does, unless it never can.
  if name == "fit" then
    return function(used, capacity, cost, slack)
      if cost == 0 and capacity > 0 then
        return true
      elseif cost > capacity or capacity == 0 then
        return false
      end
      return used <= capacity - cost + slack, capacity - cost
    end
  end

  -- Finds whether a limit by itself admits what does not plainly fit and, if it does not, when it would.
  if name == "judge" then
    return function(limit, cost, draw)
      if limit.unlimited or limit.holds then
        return
      end
      local admits, room = part("fit")(limit.used, limit.capacity, cost, limit.slack)
      if admits and room and limit.soft and draw < (limit.used / limit.capacity - limit.soft) / (1 - limit.soft) then
        admits, room, limit.changed = false, limit.soft * limit.capacity, (limit.changed or 0) + 4
      end
      if not admits then
        limit.admits, limit.retry_us = false, room and math.max(math.ceil(limit.wait(limit, room)), 1) or -1
      end
    end
  end

  -- Charges whatever the maximum; refunds what was used and no more; renews or frees a slot that is still held.
  if name == "adjust" then
    return function(limit, operation, cost)
      limit.amount = 0
      if operation == "renew" or operation == "release" then
        limit.admits = operation == "release" or not limit.slot or limit.holds
        limit.retry_us = limit.admits and 0 or -1
        limit.amount = not limit.holds and 0 or operation == "renew" and 1 or -1
      elseif limit.algorithm ~= "concurrency" then
        limit.amount = operation == "charge" and cost or -math.min(limit.used, cost)
      end
    end
  end

  -- Ends a request that spends nothing. The same one again has spent before, so it is admitted, and takes its slot again
  -- only where that was freed meanwhile. A refusal writes clamps and nothing else; if that fails, the next one tries it.
  if name == "settle" then
    return function(limit, admitted, repeated, full, operation)
      if repeated and limit.slot and not limit.holds then
        if not full then
          limit.spend(limit, 1)
        end
      elseif repeated then
        limit.admits, limit.retry_us = true, 0
      elseif limit.clamped and not admitted and operation ~= "peek" then
        pcall(limit.spend, limit, 0)
      end
    end
  end

  -- Answers any request, or one that a fault has ended: with the fault.
  if name == "answer" then
    -- Returns the limit at a position in ARGV, which leads to the others of its policy; where they end in ARGV, and how
    -- many keys they have. A limit has room for 16 fields, seven of them added later: with a seventeenth, Lua would make
    -- the table anew.
    local function parse(at)
      local flags, max, algorithm = ARGV[at] + 0, ARGV[at + 1] + 0, "fixed_window"
      local capacity, soft, next_at, keys = max, nil, at + 3, flags % 4 >= 2 and 2 or 1
      if flags % 128 >= 64 then
        algorithm, next_at = ARGV[next_at], next_at + 1
      end
      if flags % 256 >= 128 then
        capacity, next_at = ARGV[next_at] + 0, next_at + 1
      end
      if flags >= 256 then
        soft, next_at = ARGV[next_at] + 0, next_at + 1
      end
      local read, wait, spend = part(algorithm)
      local limit = {
        algorithm = algorithm,
        read = read,
        wait = wait,
        spend = spend,
        max = max,
        capacity = capacity,
        window_us = ARGV[at + 2] + 0,
        flags = flags,
        slack = 0,
      }
      if flags % 64 >= 16 or soft then
        limit.aligned, limit.shadow, limit.soft = flags % 32 >= 16, flags % 64 >= 32, soft
      end
      if flags % 2 == 1 then
        local more
        limit.next, next_at, more = parse(next_at)
        return limit, next_at, keys + more
      end
      return limit, next_at, keys
    end

    -- Parses a policy that other requests may share; only the embedded store has some from call to call.
    local function parse_once(at)
      local policy = ARGV.policies and ARGV.policies[at]
      if policy then
        return policy.limit, policy.next_at, policy.keys
      end
      local limit, next_at, keys = parse(at)
      if ARGV.policies or ARGV[next_at] then
        ARGV.policies = ARGV.policies or {}
        ARGV.policies[at] = { limit = limit, next_at = next_at, keys = keys }
      end
      return limit, next_at, keys
    end

    -- Decides a request, from one of its limits on: reads and judges this limit, then the others; when all are known, on
    -- the way back, spends. Takes and returns whether every enforced limit admits, whether the request has spent before,
    -- and whether a slot that it needs is not to be had.
    local function decide(limit, key, fields, admitted, repeated, full, operation, cost, draw, slot)
      local flags = limit.flags
      if limit.changed then
        part("restore")(limit)
      end
      if flags % 4 >= 2 then
        fields, key = redis.pcall("HGETALL", KEYS[key]), key + 1
      end
      limit.key, limit.admits, limit.retry_us, limit.amount = KEYS[key], true, 0, cost
      if flags % 8 >= 2 and (fields[1] or fields.err) then
        part("override")(limit, fields)
      end
      if limit.unlimited or limit.shadow or operation == "reset" then
        part("read")(limit, operation, slot)
      else
        limit.read(limit, limit.key, slot)
      end
      if operation == "charge" or operation == "refund" or operation == "renew" or operation == "release" then
        part("adjust")(limit, operation, cost)
      elseif limit.used + cost > limit.capacity + limit.slack or limit.soft or limit.capacity == 0 then
        part("judge")(limit, cost, draw)
      end
      if not limit.shadow then
        admitted, repeated = admitted and limit.admits, repeated or (limit.holds and operation == "acquire")
        full = full or (limit.slot and not limit.admits)
      elseif limit.holds and operation == "acquire" then
        limit.amount = 0 -- a shadow that has the slot keeps it as it is
      end
      if limit.next then
        admitted, repeated, full =
          decide(limit.next, key + 1, fields, admitted, repeated, full, operation, cost, draw, slot)
      end
      if not admitted or repeated or operation == "peek" or limit.unlimited then
        part("settle")(limit, admitted, repeated, full, operation)
        return admitted, repeated, full
      end
      local amount, other = limit.admits and limit.amount or 0, limit.next
      while other and (other.key ~= limit.key or other.unlimited) do
        other = other.next
      end
      if other then
        limit.used = limit.used + amount -- limits that meet in one counter move it once
      elseif limit.shadow and (amount ~= 0 or limit.clamped) then
        pcall(limit.spend, limit, amount) -- a shadow that cannot be written must not fail the others
      elseif amount ~= 0 or limit.clamped then
        limit.spend(limit, amount)
      end
      return admitted, repeated, full
    end

    -- Writes what each limit says.
    local function report(limit, reply, size)
      local used, remaining, reset_us = limit.used, limit.capacity - limit.used, limit.reset_us
      if limit.slack > 0 or limit.capacity == 0 then
        used, remaining = math.floor(used + limit.slack), math.floor(remaining + limit.slack)
        reset_us = math.ceil(reset_us - 0.25)
      end
      reply[size + 1] = (limit.admits and 1 or 0) + (limit.changed or 0)
      reply[size + 2] = limit.capacity
      reply[size + 3] = used
      reply[size + 4] = remaining > 0 and remaining or 0
      reply[size + 5] = limit.retry_us
      reply[size + 6] = reset_us > 0 and reset_us or 0
      if limit.next then
        return report(limit.next, reply, size + 6)
      end
      return size + 6
    end

    -- Returns where the next request begins in ARGV, KEYS and the reply.
    return function(at, key, reply, size, fault)
      local operation, policy_at, draw, slot, ok = ARGV[at], at + 2, nil, nil, nil
      if string.find(operation, "@", 1, true) then
        operation, draw = string.match(operation, "^(.*)@(.*)$")
        draw = draw + 0
      end
      if operation == "acquire" or operation == "renew" or operation == "release" then
        slot, policy_at = ARGV[policy_at], policy_at + 1
      end
      local limits_at = ARGV[policy_at] + 0
      limits_at = limits_at < 0 and -limits_at or policy_at
      local limit, next_at, keys = parse_once(limits_at)
      next_at = limits_at == policy_at and next_at or policy_at + 1
      if not fault then
        ok, fault = pcall(decide, limit, key, nil, true, false, false, operation, ARGV[at + 1] + 0, draw, slot)
      end
      if ok then
        return next_at, key + keys, report(limit, reply, size)
      elseif type(fault) ~= "table" or not fault.fault then
        error(fault, 0) -- a fault of the script is nobody's answer
      end
      for index = #reply, size + 2, -1 do
        reply[index] = nil
      end
      reply[size + 1] = fault.fault
      return next_at, key + keys, size + 1
    end
  end
end

-- Decides a check by a plain policy, from one of its limits on, without the tables and functions that any request may
-- need: reads and judges this limit, then the others; when all are known, on the way back, spends and reports. Takes the
-- cost also as it stands in ARGV (amount), as Redis is slow to make a text of a number. Returns whether all admit, and
-- where the next request begins in ARGV, KEYS and the reply; or nothing, having written nothing, if it is not as simple
-- as that: an override lifts a limit, or the clock was set back.
local function check(at, flags, key, cost, amount, admitted, reply, size, fields)
  local next_at, next_key, next_size = at + 3, key + 1, size + 6
  local max, window_us, admits, retry_us, changed = ARGV[at + 1] + 0, ARGV[at + 2] + 0, true, 0, 0
  if flags % 4 >= 2 then
    fields = redis.pcall("EXISTS", KEYS[key]) ~= 0 and redis.pcall("HGETALL", KEYS[key])
    key, next_key = key + 1, key + 2
  end
  if fields and flags % 8 >= 2 then
    local limit = { flags = flags, key = KEYS[key], max = max, window_us = window_us }
    part("override")(limit, fields)
    max, window_us, changed = limit.max, limit.window_us, limit.changed
    if limit.unlimited then
      return nil
    end
  end
  local used, reset_us, length_us = read_window(KEYS[key], window_us)
  if length_us then
    return nil
  end
  if used + cost > max or max == 0 then
    local room
    admits, room = part("fit")(used, max, cost, 0)
    admitted, retry_us = admitted and admits, admits and 0 or room and reset_us or -1
  end
  if flags % 2 == 1 then
    admitted, next_at, next_key, next_size =
      check(next_at, ARGV[next_at] + 0, next_key, cost, amount, admitted, reply, next_size, fields)
    if admitted == nil then
      return nil
    end
  end
  if admitted and cost > 0 then
    used = used + cost
    if reset_us == 0 then
      reset_us = part("open")(KEYS[key], used, window_us, flags >= 16)
    else
      local total = redis.pcall("HINCRBY", KEYS[key], "n", amount)
      if total ~= used then
        expect(total)
      end
    end
  end
  reply[size + 1] = (admits and 1 or 0) + changed
  reply[size + 2] = max
  reply[size + 3] = used
  reply[size + 4] = max > used and max - used or 0
  reply[size + 5] = retry_us
  reply[size + 6] = reset_us
  return admitted, next_at, next_key, next_size
end

-- Answers each request from a position in ARGV on; with none given, from the first one on, having read the clock.
local function answer(at, key, reply, size, answer_any)
  if not at then
    if ARGV[1] == "1" then
      local time = redis.call("TIME")
      now_us = time[1] * 1000000 + time[2]
    else
      now_us = string.sub(ARGV[1], 3) + 0
    end
    at, key, reply, size = 2, 1, { 0, 0, 0, 0, 0, 0 }, 0 -- as long as one limit's answer from the start
  end
  local ok, outcome, next_at, next_key, next_size = true, nil, nil, nil, nil
  if ARGV[at] == "check" then
    local limits_at, flags, cost = at + 2, ARGV[at + 2] + 0, ARGV[at + 1]
    if flags < 0 then
      limits_at, flags = -flags, ARGV[-flags] + 0
    end
    if flags % 16 < 8 then
      ok, outcome, next_at, next_key, next_size = pcall(check, limits_at, flags, key, cost + 0, cost, true, reply, size)
      next_at = limits_at == at + 2 and next_at or at + 3
    end
  end
  if outcome == nil or not ok then
    answer_any = answer_any or part("answer")
    next_at, next_key, next_size = answer_any(at, key, reply, size, outcome)
  end
  if ARGV[next_at] then
    return answer(next_at, next_key, reply, next_size, answer_any)
  end
  return reply
end

-- The embedded store keeps the functions that Redis makes anew for each call.
if ARGV[1] == "define" then
  local make, made = part, {}
  part = function(name)
    local functions = made[name]
    if not functions then
      functions = { make(name) }
      made[name] = functions
    end
    return functions[1], functions[2], functions[3]
  end
  return answer
end
return answer()
