--[[
ratekit: decides a batch of rate-limit requests, one after the other, in one atomic call.

A policy is a list of limits decided together: a request refused by one enforced limit spends from none.
Times are integer microseconds (suffix _us), read from the server's clock once. Written for Lua 5.1, runs on 5.4.

KEYS, for each request, in order:
  record          only for reserve and settle: the hash that remembers the reservation
  for each limit:
    override      only if the limit's flags say so: the hash of numbers that replace the limit's own for this subject
    wide          with the override: the hash of the subject for all endpoints, below the override; perhaps the same key
    state         of the limit. The text after the last colon, up to an "@", is the limit's name, which
                  prefixes its fields in the override hash

ARGV
  version           of this protocol: "2"; "2@<us>" decides by that time instead of the server's
  for each request, until ARGV ends:
    operation       check, take, peek, charge, refund, return, reserve, settle, acquire, renew, release or reset; perhaps
                    with "@d" and a random number in [0, 1) after it, if one of its limits is soft; with "@s" and a fraction
                    of each capacity that the request may use; with "@c", if a reserve may get less than its cost
    cost            how much it spends from each limit; or a list such as "1,800,120", and each limit has a position in it;
                    for settle, what the request has cost in the end; for return, what a check has spent
    id              of the slot or the reservation; only for acquire, renew, release, reserve and settle
    hold_ms         for how long the record of a reservation is kept; only for reserve and settle
    fingerprint     of the policy: the names, algorithms and units of its limits, in order; only for reserve and settle
    known           the cost of the reservation if the answer to its reserve has arrived, else 0; only for settle
    age_us          how long ago the answer to the check arrived; only for return
    resets          what the check has answered as reset_us of each limit, separated by commas; only for return
    for each limit of its policy (or, instead of them all, "-<position>": where they stand in an earlier request):
      flags         1 another limit follows + 2 brings an override key + 4 is not its policy's first, and has the
                    override of the limit before unless it brings one + 8 its policy is not plain + 16 aligned
                    + 32 shadow + 64 algorithm follows + 128 burst follows + 256 soft follows
                    + 512 position follows (in all limits of the request, or in none) + 1024 boundaries follow
      max_requests  per window
      window_us     how long the window is
      algorithm     sliding_window_counter, sliding_window_log, token_bucket or concurrency, else it is fixed_window
      burst         capacity of a token bucket, else it is max_requests
      soft          fraction of the maximum above which requests are refused at random
      position      of the limit's cost in the list, from 1 on; a cost that is one number is for all limits
      boundaries    four times in microseconds, at which periods of a calendar begin: a window ends at the first one that
                    is still to come, and window_us is the longest period
A policy is plain if all its limits are fixed windows, enforced and not soft, and no two of them have the same key.
Limits with the same key move it once, and need the same cost. A concurrency limit takes one slot whatever the cost.

Override hash, all fields optional, for its policy's first limit (or "<limit>.<field>", for the limit of that name):
  max_requests    0 blocks
  expiry          window in seconds
  burst
  unlimited       1: this limit does not count and never refuses
  until           seconds since the epoch: the limit refuses everything until then; a max_requests of 0 beside it does not count
If the override has none of the first four fields for a limit, those of the wide hash apply. The later until of both applies.

Record of a reservation, a hash that is kept for hold_ms after it was written first:
  e               what was reserved, as cost
  r               one receipt for each limit, separated by commas: what may be given back to which window; "-" for none
  f               the fingerprint of its policy
  d               1: it is settled
A settle gives back to the window in which the reserve has spent, as far as that window still counts it, and charges to the
current one what the request has cost beyond its estimate. Only the first settle of an id counts, and a reserve that comes
again, or after its settle, spends nothing. Without a record nothing is given back: the reserve was never sent, or was
refused, or is long ago. So it is with a record of another fingerprint: the policy has changed since.
A return gives back what a check has spent, without a record: the answer's age and its resets tell in which window that was.

Reply, one flat list; for each request:
  message         only if the server failed it: the error, a string; no limit follows and nothing was spent
  for each limit, integers:
    flags         1 admits + 2 overridden + 4 refused by the soft band + 8 unlimited + 16 override unreadable
                  + 32 the boundaries are all past + 64 the reservation was made, or settled, before
                  + 128 refused until the time that an override says
    max_requests  effective maximum
    used          after this request, rounded down
    remaining     rounded down, never negative
    retry_us      0 if it admits, -1 if the cost can never fit, else the wait until it fits
    reset_us      until the window ends, the bucket is full, or the oldest entry or slot is free; no sooner than until
  taken           for take, and for a reserve with "@c": what was spent of each cost in the list, which is as much as fits
                  in every enforced limit, and at least 1; an integer each
The request is admitted if every limit that is no shadow admits.

Contents
  read_window       the state of a fixed window
  library           everything that a check by a plain policy does not need, created on first use:
    expect            raises server errors
    algorithm(name)   fixed_window, sliding_window_counter, sliding_window_log, token_bucket, concurrency
    part(name)        the general path, which decides any request: general, parse, decide, report
                      its steps: read, judge, adjust, skip, restore
                      special requests (reserve, settle, take, a draw, a share): is_special, special, run_special, share,
                      clamp, move, give_since, keep, report_taken
                      for both paths: expire, open, calendar, overrides, override, fit, costs
                      the fast path of reservations by plain policies: reserve, settle
  check             the fast path: decides checks by plain policies
  answer            answers each request by one of the two paths
]]

local now_us, part, check

-- A fixed window is a hash: n used until e, the end of a window that was opened w us long. It keeps its end when the
-- limit changes. Returns what is used and how long the window still lasts, 0 if none is open. A window that ends further
-- ahead than it was long was opened before the clock was set back: then its length is returned too.
local function read_window(key, window_us)
  local state = redis.pcall("HMGET", key, "n", "e")
  if state.err then
    part("expect")(state)
  end
  local used, end_us = tonumber(state[1]), tonumber(state[2])
  if not (used and end_us and used % 1 == 0 and now_us < end_us) then
    return 0, 0, nil
  elseif end_us - now_us <= window_us then
    return used, end_us - now_us, nil
  end
  local length_us = tonumber(part("expect")(redis.pcall("HGET", key, "w"))) or window_us
  return used, end_us - now_us, end_us - now_us > length_us and length_us or nil
end

-- Redis runs this whole file for each call, and creating a Lua function costs time even if nobody calls it: about 2 % of
-- a check. So the functions that most checks do not need are created on request: all of them inside this function, which
-- the first call of `part` runs, and most of them in a branch of `algorithm` or `part`.
local function library(first_name)
  -- Raises a server error, which ends only the request that met it. The error is wrapped in a table: the pcall of Redis 7
  -- would turn the server's own error into a text, which looks like a bug of this script.
  local function expect(reply)
    if type(reply) == "table" and reply.err then
      error({ fault = tostring(reply.err) }, 0)
    end
    return reply
  end

  -- The current request, if it is a special one: see part "special". Else nil.
  local special

  --[[
  Returns the functions of an algorithm. A limit is a table: its numbers, and its state for the current request.
    read(limit, key, slot)  sets used, reset_us, slack (what of used fades in half a microsecond, at most half a request:
                            it counts as gone), refundable if more than used can be given back, and clamped if a stored
                            time lies ahead of the clock; writes nothing
    wait(limit, room)       returns the microseconds until used <= room, within a quarter of one where used fades
    spend(limit, amount)    adds amount to used (negative: gives back) and stores it, with the clamp
  If asked for receipts also these, which follow a read:
    receipt(limit)          returns the receipt of what was just spent
    give(limit, receipt, estimate, rest)
                            returns how much of the rest of an estimate spend has to give back, at most, so that the
                            state is what it would be if less had been spent at that time, or counts more, never less
  ]]
  local function algorithm(name, has_receipts)
    if name == "fixed_window" then
      local function read(limit, key)
        local length_us
        limit.used, limit.reset_us, length_us = read_window(key, limit.window_us)
        limit.running, limit.clamped, limit.length_us = limit.reset_us > 0, length_us ~= nil, length_us or limit.window_us
        if length_us and limit.calendar_at then
          limit.reset_us = part("calendar")(limit.calendar_at, length_us)
        elseif length_us then
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
          local stale
          limit.reset_us, stale = part("open")(limit.key, limit.used, limit.length_us, limit.aligned, limit.calendar_at)
          limit.changed = stale > 0 and (limit.changed or 0) + stale or limit.changed
        end
      end

      if not has_receipts then
        return read, wait, spend
      end

      -- A receipt is the end of the window.
      local function receipt(limit)
        return string.format("%.0f", now_us + limit.reset_us)
      end

      local function give(limit, text, _, rest)
        local is_same = limit.running and not limit.clamped and now_us + limit.reset_us == text + 0
        return is_same and math.min(rest, limit.used) or 0
      end

      return read, wait, spend, receipt, give
    end

    -- Hash: c used in the window of w us that began at s, p in the window before, which fades out linearly. One request
    -- of the window before is not counted. If it were, the last request of each window would fit only when the window is
    -- over: a client that asks all the time would get max_requests - 1 per window.
    if name == "sliding_window_counter" then
      local function count(current, faded)
        return faded > 1 and current + faded - 1 or current
      end

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
        local faded = previous > 0 and previous * left_us / length_us or 0
        limit.used, limit.refundable = count(current, faded), current + faded
        limit.slack = math.min(0.5 * previous / length_us, 0.5)
        limit.reset_us = current + previous > 0 and left_us or 0
      end

      local function wait(limit, room)
        local current, previous, length_us, window_us = limit.current, limit.previous, limit.length_us, limit.window_us
        if room >= current then
          return limit.left_us - (room + 1 - current) * length_us / previous - (previous > length_us and 0 or 0.25)
        end
        local rest = math.max(1 - (room + 1) / current, 0)
        return limit.left_us + window_us * rest - (current > window_us and 0 or 0.25)
      end

      -- A refund comes off the current window first.
      local function spend(limit, amount)
        local key, length_us, left_us = limit.key, limit.length_us, limit.left_us
        local current = math.max(limit.current + amount, 0)
        local rest = limit.current + amount - current
        local previous = math.max(limit.previous + rest * length_us / left_us, 0)
        previous = previous < 0.000001 and 0 or previous -- a rest that rounding has left counts as nothing
        limit.used, limit.reset_us = count(current, previous * left_us / length_us), current + previous > 0 and left_us or 0
        if limit.lower then
          limit.lower()
          return
        elseif limit.running and rest == 0 then
          expect(redis.pcall("HINCRBY", key, "c", amount))
          return
        end
        expect(redis.pcall("HSET", key, "c", current, "p", previous, "s", now_us + left_us - length_us, "w", length_us))
        part("expire")(key, left_us + length_us)
      end

      if not has_receipts then
        return read, wait, spend
      end

      -- A receipt is the end of the window.
      local function receipt(limit)
        return string.format("%.0f", now_us + limit.left_us)
      end

      -- What was spent in the window before comes off that window's count, wherever it is stored: no window is opened.
      local function give(limit, text, _, rest)
        local end_us = now_us + limit.left_us
        if limit.clamped then
          return 0
        elseif end_us == text + 0 then
          return math.min(rest, limit.current)
        elseif end_us - limit.length_us == text + 0 then
          limit.previous, limit.is_dirty = math.max(limit.previous - rest, 0), true
          limit.lower = function()
            expect(redis.pcall("HSET", limit.key, limit.running and "p" or "c", limit.previous))
          end
        end
        return 0
      end

      return read, wait, spend, receipt, give
    end

    -- Sorted set: one entry "<total>:<cost>" per request, scored by its time. The total is the running sum of costs, so
    -- the sum over any range is a subtraction. It starts again from zero at 2^52, before numbers lose their last digit.
    -- Two digits before it count how often that happened, and it is padded: entries of one instant stay in order.
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

      -- Finds the first entry whose expiry makes enough room, by bisection over ranks.
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

      -- A refund comes off the newest entries.
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
        if limit.lower then
          limit.lower(-amount)
        elseif amount > 0 then
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

      if not has_receipts then
        return read, wait, spend
      end

      -- A receipt is the instant of the entry. Entries of one instant and one cost are alike: any of them gives.
      local function receipt()
        return string.format("%.0f", now_us)
      end

      -- Takes amount off one entry, and off the totals of all entries after it.
      local function lower(key, rank, amount)
        local entries = expect(redis.pcall("ZRANGE", key, rank, -1, "WITHSCORES"))
        for index = 1, #entries, 2 do
          local total, cost, at_us, turn = parse({ entries[index], entries[index + 1] })
          local lowered = sum(amount, total)
          cost = index == 1 and cost - amount or cost
          expect(redis.pcall("ZREM", key, entries[index]))
          if cost > 0 then
            add(key, at_us, lowered > total and (turn - 1) % 100 or turn, lowered, cost)
          end
        end
      end

      -- At most 256 entries after it are written anew; if there are more, nothing is given back.
      local function give(limit, text, estimate, rest)
        if limit.clamped or text + 0 <= now_us - limit.window_us then
          return 0
        end
        local entries = expect(redis.pcall("ZRANGEBYSCORE", limit.key, text, text))
        for index = 1, #entries do
          local _, cost = parse({ entries[index] })
          local rank = cost == estimate and expect(redis.pcall("ZRANK", limit.key, entries[index]))
          if rank and expect(redis.pcall("ZCARD", limit.key)) - rank <= 257 then
            limit.lower = function(amount)
              lower(limit.key, rank, amount)
            end
            return rest
          end
        end
        return 0
      end

      return read, wait, spend, receipt, give
    end

    -- Hash: u used at t. It drains at max_requests per window; nothing is used of a full bucket.
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
        part("expire")(limit.key, limit.max > 0 and limit.reset_us or limit.window_us) -- a blocked bucket does not drain
        if limit.is_giving then
          expect(redis.pcall("HINCRBY", limit.key, "r", math.ceil(-amount)))
        elseif limit.clamped and expect(redis.pcall("HGET", limit.key, "g")) then
          expect(redis.pcall("HSET", limit.key, "g", now_us)) -- receipts go by the clock, which was set back
        end
      end

      if not has_receipts then
        return read, wait, spend
      end

      -- A receipt is the instant at which all that was used would have drained, with the rate, and two fields that only
      -- reservations add to the hash: g, when the first reservation came, which a deleted bucket does not have any more,
      -- and r, how much was given back since then.
      local function receipt(limit)
        local state = expect(redis.pcall("HMGET", limit.key, "g", "r"))
        local first_us, given = tonumber(state[1]), tonumber(state[2]) or 0
        if not first_us then
          first_us = now_us
          expect(redis.pcall("HSET", limit.key, "g", first_us, "r", 0))
        end
        local drained_us = math.floor(now_us + limit.reset_us)
        return string.format("%.0f:%.0f:%.0f:%.17g", drained_us, first_us, given, limit.max / limit.window_us)
      end

      -- Of what was used then, so much is used still, whatever came later: what has not drained, less what was given back
      -- meanwhile. If that is less than the rest, the bucket may have run empty without the rest, and counts more.
      local function give(limit, text, _, rest)
        local drained_us, first_us, given, rate = string.match(text, "^(%d+):(%d+):(%d+):(.*)$")
        local state = expect(redis.pcall("HMGET", limit.key, "g", "r"))
        local is_same = drained_us and tonumber(state[1]) == first_us + 0 and rate + 0 == limit.max / limit.window_us
        if limit.clamped or not is_same then
          return 0
        end
        local returned = (tonumber(state[2]) or 0) - given
        local left = (drained_us - now_us) * limit.max / limit.window_us - returned
        limit.is_giving = true
        return math.max(math.min(rest, left, limit.used), 0)
      end

      return read, wait, spend, receipt, give
    end

    -- Sorted set: the id of each slot, scored by the time at which a slot that nobody released is free again. A request
    -- takes one slot whatever its cost.
    if name == "concurrency" then
      local function read(limit, key, slot)
        local latest_us, from = now_us + limit.window_us, string.format("(%.0f", now_us)
        local oldest = expect(redis.pcall("ZRANGEBYSCORE", key, from, "+inf", "WITHSCORES", "LIMIT", 0, 1))
        local newest = expect(redis.pcall("ZRANGE", key, -1, -1, "WITHSCORES"))
        limit.slot, limit.latest_us, limit.amount = slot, latest_us, 1
        limit.clamped = (tonumber(newest[2]) or 0) > latest_us
        limit.used = expect(redis.pcall("ZCOUNT", key, from, "+inf"))
        limit.reset_us = oldest[2] and math.min(tonumber(oldest[2]), latest_us) - now_us or 0
        limit.holds = slot and (tonumber(expect(redis.pcall("ZSCORE", key, slot))) or 0) > now_us
      end

      -- Finds the end of the slot that makes room: not the oldest slot if the maximum was lowered.
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

      -- Amount 1 takes or renews the slot, -1 frees it, 0 stores the clamp only. The state is read again if the slot was
      -- held: it may have been the oldest, which determines reset_us.
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
  end

  -- Returns a function by its name.
  function part(name)
    if name == "expect" then
      return expect
    end

    -- Decides a reserve by a plain policy as the fast path decides a check, and writes its record. Returns what check does;
    -- nil, having written nothing, if only the general path can decide.
    if name == "reserve" then
      return function(at, key, reply, size)
        local costs, record, policy_at = ARGV[at + 1], KEYS[key], at + 5
        local flags = ARGV[policy_at] + 0
        local limits_at = flags < 0 and -flags or policy_at
        flags = ARGV[limits_at] + 0
        if flags % 16 >= 8 then -- the policy is not plain
          return nil
        end
        if redis.pcall("EXISTS", record) ~= 0 then
          return nil
        end
        local amounts = flags % 1024 >= 512 and part("costs")(costs) or costs
        local admitted, next_at, next_key, next_size = check(limits_at, flags, key + 1, amounts, true, reply, size)
        if admitted then
          local receipts = string.format("%.0f", now_us + reply[size + 6])
          for reset_at = size + 12, next_size, 6 do
            receipts = receipts .. string.format(",%.0f", now_us + reply[reset_at])
          end
          expect(redis.pcall("HSET", record, "e", costs, "r", receipts, "f", ARGV[at + 4]))
          expect(redis.pcall("PEXPIRE", record, ARGV[at + 3]))
        end
        return admitted, limits_at == policy_at and next_at or policy_at + 1, next_key, next_size
      end
    end

    -- Settles a reservation of a plain policy in local variables, as the fast path decides a check. Costs, estimates and
    -- receipts are texts if there is one limit, else lists. Returns what check does; nil, having written nothing, if only
    -- the general path can: there is no record, or it is settled or of another policy, there is an override, a window has
    -- to be opened, or the clock was set back.
    if name == "settle" then
      local function settle(at, flags, key, number, costs, estimates, receipts, reply, size)
        local next_at, position, receipt = at + 3, 1, nil
        if flags % 1024 >= 512 then -- has a position
          position, next_at = ARGV[next_at] + 0, next_at + 1
        end
        if flags % 4 >= 2 then -- brings an override key
          if redis.pcall("EXISTS", KEYS[key], KEYS[key + 1]) ~= 0 then
            return nil
          end
          key = key + 2
        end
        local amount = number and costs[position] - estimates[position] or costs - estimates
        receipt = number and receipts[number] or receipts
        local next_key, next_size, max = key + 1, size + 6, ARGV[at + 1] + 0
        local used, reset_us, length_us = read_window(KEYS[key], ARGV[at + 2] + 0)
        if length_us or receipt == "-" or (amount > 0 and reset_us == 0) then
          return nil
        elseif amount < 0 then
          amount = now_us + reset_us == receipt + 0 and math.max(amount, -used) or 0
        end
        next_at = flags >= 1024 and next_at + 4 or next_at -- has boundaries
        if flags % 2 == 1 then -- another limit follows
          next_at, next_key, next_size =
            settle(next_at, ARGV[next_at] + 0, next_key, number + 1, costs, estimates, receipts, reply, next_size)
          if not next_at then
            return nil
          end
        end
        if amount ~= 0 then
          used = used + amount
          expect(redis.pcall("HINCRBY", KEYS[key], "n", amount))
        end
        reply[size + 1], reply[size + 2], reply[size + 3] = 1, max, used
        reply[size + 4], reply[size + 5], reply[size + 6] = max > used and max - used or 0, 0, reset_us
        return next_at, next_key, next_size
      end

      return function(at, key, reply, size)
        local policy_at, record = at + 6, KEYS[key]
        local flags = ARGV[policy_at] + 0
        local limits_at = flags < 0 and -flags or policy_at
        flags = ARGV[limits_at] + 0
        if flags % 16 >= 8 then -- the policy is not plain
          return nil
        end
        local state = expect(redis.pcall("HMGET", record, "e", "r", "d", "f"))
        if not state[1] or state[3] or state[4] ~= ARGV[at + 4] then
          return nil
        end
        local costs, estimates, receipts, number = ARGV[at + 1], state[1], state[2], nil
        if flags % 2 == 1 or flags % 1024 >= 512 then -- another limit follows, or there may be several costs
          local listed = part("costs")
          costs, estimates, receipts, number = listed(costs), listed(estimates), listed(receipts), 1
        end
        local next_at, next_key, next_size = settle(limits_at, flags, key + 1, number, costs, estimates, receipts, reply, size)
        if next_at then
          expect(redis.pcall("HSET", record, "d", "1"))
        end
        return next_at and true or nil, limits_at == policy_at and next_at or policy_at + 1, next_key, next_size
      end
    end

    -- Decides any request, or reports the fault that has ended a request on the fast path. Returns where the next request
    -- begins in ARGV, KEYS and the reply.
    if name == "general" then
      local parse, decide, report = part("parse"), part("decide"), part("report")
      return function(at, key, reply, size, fault)
        local operation, costs, policy_at, id, ok = ARGV[at], ARGV[at + 1], at + 2, nil, nil
        local state_key = key
        special = nil
        if operation == "acquire" or operation == "renew" or operation == "release" then
          id, policy_at = ARGV[policy_at], policy_at + 1
        elseif operation ~= "check" and part("is_special")(operation) then
          special = part("special")(at, key)
          operation, id, policy_at, state_key = special.operation, special.id, special.policy_at, special.state_key
        end
        local limits_at = ARGV[policy_at] + 0
        limits_at = limits_at < 0 and -limits_at or policy_at
        local limit, next_at, keys = parse(limits_at)
        next_at = limits_at == policy_at and next_at or policy_at + 1
        if not fault then
          costs = limit.position and part("costs")(costs) or costs + 0
          local run = special and part("run_special") or decide
          ok, fault = pcall(run, limit, state_key, nil, operation, costs, id, true, false, false)
        end
        if ok then
          size = report(limit, reply, size)
          return next_at, state_key + keys, special and special.clamps and part("report_taken")(reply, size) or size
        elseif type(fault) ~= "table" or not fault.fault then
          error(fault, 0) -- a bug of the script is no request's answer
        end
        for index = #reply, size + 2, -1 do
          reply[index] = nil
        end
        reply[size + 1] = fault.fault
        return next_at, state_key + keys, size + 1
      end
    end

    -- Parses the limits of a policy at a position in ARGV. Returns the first limit, which leads to the next, where the
    -- limits end in ARGV, and how many KEYS they have. Requests of a batch share parsed limits; the embedded store keeps
    -- them between calls.
    if name == "parse" then
      return function(at)
        local known = ARGV.policies and ARGV.policies[at]
        if known then
          return known.first, known.next_at, known.keys
        end
        local first, last, next_at, keys = nil, nil, at, 0
        repeat
          local flags, max, window_us = ARGV[next_at] + 0, ARGV[next_at + 1] + 0, ARGV[next_at + 2] + 0
          local another_follows, brings_override = flags % 2 >= 1, flags % 4 >= 2
          local aligned, shadow = flags % 32 >= 16, flags % 64 >= 32
          local has_algorithm, has_burst = flags % 128 >= 64, flags % 256 >= 128
          local has_soft, has_position, has_boundaries = flags % 512 >= 256, flags % 1024 >= 512, flags >= 1024
          local kind, capacity, soft, position, calendar_at = "fixed_window", max, nil, nil, nil
          next_at, keys = next_at + 3, keys + (brings_override and 3 or 1)
          if has_algorithm then
            kind, next_at = ARGV[next_at], next_at + 1
          end
          if has_burst then
            capacity, next_at = ARGV[next_at] + 0, next_at + 1
          end
          if has_soft then
            soft, next_at = ARGV[next_at] + 0, next_at + 1
          end
          if has_position then
            position, next_at = ARGV[next_at] + 0, next_at + 1
          end
          if has_boundaries then
            calendar_at, next_at = next_at, next_at + 4
          end
          local read, wait, spend = algorithm(kind)
          -- Lua makes room for 16 fields; seven are added later. With a seventeenth it would build the table anew.
          local limit = {
            algorithm = kind,
            read = read,
            wait = wait,
            spend = spend,
            max = max,
            capacity = capacity,
            window_us = window_us,
            flags = flags,
            slack = 0,
          }
          if aligned or shadow or soft or position or calendar_at then
            limit.aligned, limit.shadow, limit.soft, limit.position = aligned, shadow, soft, position
            limit.calendar_at = calendar_at
          end
          if last then
            last.next = limit
          end
          first, last = first or limit, limit
        until not another_follows
        if ARGV.policies or ARGV[next_at] then
          ARGV.policies = ARGV.policies or {}
          ARGV.policies[at] = { first = first, next_at = next_at, keys = keys }
        end
        return first, next_at, keys
      end
    end

    -- Decides a request, from one of its limits on. Plans: applies the override, reads the state, judges the amount. Then
    -- calls itself for the next limit. When all limits are known, on the way back, commits.
    --   admitted  whether every enforced limit admits the request
    --   repeated  whether it holds its slot already, as the same request has spent before
    --   full      whether an enforced concurrency limit has no slot for it
    -- These three are passed on and returned as values, and limits are not visited in a loop: a table for the state of a
    -- request costs 3 % of a call in Redis, and with a loop LuaJIT needs twice the time.
    if name == "decide" then
      local function decide(limit, key, fields, operation, costs, id, admitted, repeated, full)
        local flags = limit.flags
        local brings_override, has_override = flags % 4 >= 2, flags % 8 >= 2
        if limit.changed then
          part("restore")(limit)
        end
        if brings_override then
          fields = redis.pcall("EXISTS", KEYS[key], KEYS[key + 1]) ~= 0 and part("overrides")(key)
          key = key + 2
        end
        limit.key, limit.admits, limit.retry_us, limit.amount = KEYS[key], true, 0, costs
        if limit.position then
          limit.amount = (costs[limit.position] or costs[1]) + 0
        end
        if has_override and fields then
          part("override")(limit, fields)
        end
        if special and special.share then
          part("share")(limit)
        end
        if limit.unlimited or limit.shadow or operation == "reset" then
          part("read")(limit, operation, id)
        else
          limit.read(limit, limit.key, id)
        end
        if operation ~= "check" and part("is_unconditional")(operation) then
          part("adjust")(limit, operation)
        elseif
          limit.used + limit.amount > limit.capacity + limit.slack
          or limit.soft
          or limit.capacity == 0
          or limit.until_us
        then
          part("judge")(limit)
        end
        if not limit.shadow then
          admitted, repeated = admitted and limit.admits, repeated or (limit.holds and operation == "acquire")
          full = full or (limit.slot and not limit.admits)
        elseif limit.holds and operation == "acquire" then
          limit.amount = 0 -- a shadow does not renew a slot that it holds
        end
        if limit.next then
          admitted, repeated, full =
            decide(limit.next, key + 1, fields, operation, costs, id, admitted, repeated, full)
        end
        if not admitted or repeated or operation == "peek" or limit.unlimited then
          part("skip")(limit, operation, admitted, repeated, full)
          return admitted, repeated, full
        end
        local amount, other = limit.admits and limit.amount or 0, limit.next
        while other and (other.key ~= limit.key or other.unlimited) do
          other = other.next
        end
        if other then
          limit.used = math.max(limit.used + amount, 0) -- of limits that share a key, the last one moves the counter
        elseif limit.shadow and (amount ~= 0 or limit.clamped or limit.is_dirty) then
          pcall(limit.spend, limit, amount) -- a shadow that cannot be written must not fail the other limits
        elseif amount ~= 0 or limit.clamped or limit.is_dirty then
          limit.spend(limit, amount)
        end
        return admitted, repeated, full
      end

      return decide
    end

    -- Writes the answers of limits into the reply, and returns its new size.
    if name == "report" then
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

      return report
    end

    -- Sets the expiry of a key: a second after its state stops to matter, and never beyond a hundred years.
    if name == "expire" then
      return function(key, us)
        expect(redis.pcall("PEXPIRE", key, math.min(math.ceil(us / 1000) + 1000, 3155760000000)))
      end
    end

    -- Opens a fixed window of which something is used. Returns how long it lasts, and 32 if its calendar is out of date.
    if name == "open" then
      return function(key, used, length_us, aligned, calendar_at)
        local left_us, stale = aligned and length_us - now_us % length_us or length_us, 0
        if calendar_at then
          left_us, length_us, stale = part("calendar")(calendar_at, length_us)
        end
        expect(redis.pcall("HSET", key, "n", used, "e", now_us + left_us, "w", length_us))
        part("expire")(key, left_us)
        return left_us, stale
      end
    end

    -- Finds the period of a calendar that runs now among the boundaries at a position in ARGV. Returns how long it still
    -- lasts, how long it is, and 32 if the boundaries are all past: then periods as long as the last one follow it.
    if name == "calendar" then
      return function(at, longest_us)
        local before_us = nil
        for index = at, at + 3 do
          local boundary_us = ARGV[index] + 0
          if now_us < boundary_us then
            return boundary_us - now_us, before_us and boundary_us - before_us or longest_us, 0
          end
          before_us = boundary_us
        end
        local length_us = before_us - ARGV[at + 2]
        return length_us - (now_us - before_us) % length_us, length_us, 32
      end
    end

    -- Forgets what was used of a limit. A window on the clock would begin again with the end that it had, by which what
    -- was reserved before returns. So it goes on, and ends a microsecond sooner: nothing returns that was spent since.
    if name == "forget" then
      return function(limit)
        local state = (limit.aligned or limit.calendar_at) and redis.pcall("HGET", limit.key, "e")
        local end_us = type(state) ~= "table" and tonumber(state)
        if end_us and now_us + 1 < end_us and end_us <= now_us + limit.window_us then
          expect(redis.pcall("HSET", limit.key, "n", 0, "e", end_us - 1))
        else
          expect(redis.pcall("DEL", limit.key))
        end
      end
    end

    -- Reads a limit that is unlimited, a shadow or to be reset. An unlimited limit is not read at all. A limit to be
    -- reset is forgotten first. A shadow that cannot be read counts as unlimited: it must not fail the other limits.
    if name == "read" then
      return function(limit, operation, id)
        local ok, fault = true, nil
        if operation == "reset" then
          part("forget")(limit)
        end
        if limit.shadow and not limit.unlimited then
          ok, fault = pcall(limit.read, limit, limit.key, id)
        elseif not limit.unlimited then
          limit.read(limit, limit.key, id)
        end
        if not ok and type(fault) ~= "table" then
          error(fault, 0)
        end
        if not ok then
          limit.own = limit.own or { limit.max, limit.capacity, limit.window_us, limit.calendar_at }
          limit.unlimited, limit.changed = true, 8 + 16
        end
        if limit.unlimited then
          limit.used, limit.reset_us, limit.clamped, limit.holds, limit.slot = 0, 0, false, false, nil
        end
        if operation == "reset" then
          limit.amount = 0
        end
      end
    end

    -- Judges a limit by itself where the amount may not fit: whether it admits the request and, if not, when it would.
    if name == "judge" then
      return function(limit)
        if limit.unlimited or limit.holds then
          return
        end
        local admits, room = part("fit")(limit.used, limit.capacity, limit.amount, limit.slack)
        local is_soft = admits and room and limit.soft
        if is_soft and special.draw < (limit.used / limit.capacity - limit.soft) / (1 - limit.soft) then
          admits, room, limit.changed = false, limit.soft * limit.capacity, (limit.changed or 0) + 4
        end
        if not admits then
          limit.admits, limit.retry_us = false, room and math.max(math.ceil(limit.wait(limit, room)), 1) or -1
        end
        if limit.until_us and limit.retry_us >= 0 then
          local left_us = limit.until_us - now_us
          limit.admits, limit.retry_us = false, math.max(limit.retry_us, left_us)
          limit.reset_us, limit.changed = math.max(limit.reset_us, left_us), limit.changed + 128
        end
      end
    end

    -- Returns whether no maximum refuses an operation.
    if name == "is_unconditional" then
      return function(operation)
        return operation == "charge"
          or operation == "refund"
          or operation == "renew"
          or operation == "release"
          or operation == "settle"
          or operation == "return"
          or operation == "repeat"
      end
    end

    -- Finds the amount of an operation that no maximum refuses: charge spends the cost, refund gives back at most what is
    -- used, renew and release apply to a slot that is still held, settle follows the receipt, a repeated operation spends
    -- nothing.
    if name == "adjust" then
      return function(limit, operation)
        local cost = limit.amount
        limit.amount = 0
        if operation == "settle" then
          part("move")(limit, cost)
        elseif operation == "return" then
          part("give_since")(limit, cost)
        elseif operation == "repeat" then
          limit.changed = (limit.changed or 0) + 64
        elseif operation == "renew" or operation == "release" then
          limit.admits = operation == "release" or not limit.slot or limit.holds
          limit.retry_us = limit.admits and 0 or -1
          limit.amount = not limit.holds and 0 or operation == "renew" and 1 or -1
        elseif limit.algorithm ~= "concurrency" then
          limit.amount = operation == "charge" and cost or -math.min(limit.refundable or limit.used, cost)
        end
      end
    end

    -- Ends a request that spends nothing from a limit. A repeated request has spent before: it is admitted, and takes its
    -- slot again only where the slot was freed in between. A refusal writes the clamp and nothing else; if that write
    -- fails, the next request writes it.
    if name == "skip" then
      return function(limit, operation, admitted, repeated, full)
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

    -- Removes from a limit what an override or a soft refusal of an earlier request has changed.
    if name == "restore" then
      return function(limit)
        local own = limit.own or { limit.max, limit.capacity, limit.window_us, limit.calendar_at }
        limit.max, limit.capacity, limit.window_us, limit.calendar_at = own[1], own[2], own[3], own[4]
        limit.changed, limit.unlimited, limit.until_us = nil, nil, nil
        limit.lower, limit.is_dirty, limit.is_giving = nil, nil, nil
      end
    end

    -- Reads the two overrides at a position in KEYS: that of the subject on the endpoint, and that for all endpoints.
    if name == "overrides" then
      local function read(key)
        local reply, fields, unreadable = redis.pcall("HGETALL", key), {}, 0
        if reply.err and not string.find(tostring(reply.err), "WRONGTYPE", 1, true) then
          error({ fault = tostring(reply.err) }, 0)
        elseif reply.err then
          unreadable = 16
        end
        for index = 1, #reply, 2 do
          fields[reply[index]] = reply[index + 1]
        end
        return fields, unreadable
      end

      return function(key)
        local own, unreadable = read(KEYS[key])
        if KEYS[key] == KEYS[key + 1] then
          return { own = own, wide = own, unreadable = unreadable }
        end
        local wide, wide_unreadable = read(KEYS[key + 1])
        return { own = own, wide = wide, unreadable = math.max(unreadable, wide_unreadable) }
      end
    end

    -- Replaces the numbers of a limit by those of an override. A missing or unreadable field leaves the limit's own.
    if name == "override" then
      return function(limit, overrides)
        local prefix = string.match(limit.key, "^.*:([^:@]*)") .. "."
        local is_first, has_burst = limit.flags % 8 < 4, limit.flags % 256 >= 128
        local overridden, unreadable = 0, overrides.unreadable

        local function text_in(fields, field)
          return fields[prefix .. field] or (is_first and fields[field]) or nil
        end

        local function number(fields, field, pattern, least, most)
          local text = text_in(fields, field)
          local value = text and #text <= 32 and string.match(text, pattern) and tonumber(text)
          if value and value >= least and value <= most then
            overridden = 2
            return value
          end
          unreadable = text and 16 or unreadable
        end

        local function end_us(fields)
          return (number(fields, "until", "^%d+%.?%d*$", 0, 253402300799) or 0) * 1000000
        end

        local fields = overrides.own
        local says = text_in(fields, "max_requests") or text_in(fields, "expiry") or text_in(fields, "burst")
        if not (says or text_in(fields, "unlimited")) then
          fields = overrides.wide
        end
        local until_us = math.floor(math.max(end_us(overrides.own), end_us(overrides.wide)) + 0.5)
        overridden = until_us > now_us and 2 or 0
        local max = number(fields, "max_requests", "^%d+$", 0, 1000000000000) or limit.max
        local burst = number(fields, "burst", "^%d+$", 1, 1000000000000) or has_burst and limit.capacity
        local expiry = number(fields, "expiry", "^%d+%.?%d*$", 0.000001, 315576000)
        if max == 0 and text_in(fields, "until") then
          max = limit.max
        end
        limit.own = { limit.max, limit.capacity, limit.window_us, limit.calendar_at }
        limit.max, limit.capacity = max, limit.algorithm == "token_bucket" and max > 0 and burst or max
        limit.window_us = expiry and math.floor(expiry * 1000000 + 0.5) or limit.window_us
        limit.calendar_at = not expiry and limit.calendar_at or nil
        limit.until_us = until_us > now_us and until_us or nil
        limit.unlimited = number(fields, "unlimited", "^[01]$", 0, 1) == 1 and not limit.until_us
        limit.changed = overridden + unreadable + (limit.unlimited and 8 or 0)
      end
    end

    -- Returns whether a cost fits beside what is used. If it does not fit yet, also returns how much may be used when it
    -- does; no second value means that the cost can never fit.
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

    -- Splits a list of costs into texts by position. One number is a list of one, which stands for all positions.
    if name == "costs" then
      return function(list)
        local costs, count = {}, 0
        for cost in string.gmatch(list, "[^,]+") do
          count = count + 1
          costs[count] = cost
        end
        return costs
      end
    end

    -- Returns whether a request brings more than its operation, its cost and a slot.
    if name == "is_special" then
      return function(operation)
        return operation == "reserve"
          or operation == "settle"
          or operation == "take"
          or operation == "return"
          or string.find(operation, "@", 1, true)
      end
    end

    -- Reads what a special request brings: its operation, with what follows "@", its id, hold_ms, fingerprint, known and
    -- record.
    if name == "special" then
      return function(at, key)
        local text = ARGV[at]
        local operation = string.match(text, "^[a-z]+")
        local request = { operation = operation, policy_at = at + 2, state_key = key }
        if operation ~= text then
          request.draw = tonumber(string.match(text, "@d([^@]*)"))
          request.share = tonumber(string.match(text, "@s([^@]*)"))
        end
        request.clamps = operation == "take" or string.find(text, "@c", 1, true)
        if operation == "reserve" or operation == "settle" then
          request.id, request.hold_ms, request.fingerprint = ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
          request.policy_at = at + 5
          request.record, request.state_key = KEYS[key], key + 1
        elseif operation == "acquire" or operation == "renew" or operation == "release" then
          request.id, request.policy_at = ARGV[at + 2], at + 3
        end
        if operation == "settle" then
          request.known, request.policy_at = ARGV[at + 5], at + 6
        elseif operation == "return" then
          request.at_us, request.resets, request.policy_at = now_us - ARGV[at + 2], part("costs")(ARGV[at + 3]), at + 4
        end
        return request
      end
    end

    -- Decides a special request; its parameters are those of decide. The record of a reservation is read first and
    -- written last: if a write fails before that, nothing has changed.
    if name == "run_special" then
      local decide = part("decide")

      -- Returns the operation that the record leaves to be done, and its costs.
      local function planned(limit, key, operation, costs, id, state)
        local has_receipts = state and state[1] and state[4] == special.fingerprint
        if state and (state[3] or (state[1] and operation == "reserve")) then
          return "repeat", has_receipts and special.clamps and part("costs")(state[1]) or costs
        elseif operation == "settle" then
          special.estimate = part("costs")(has_receipts and state[1] or special.known)
          special.receipts = part("costs")(has_receipts and state[2] or "")
          special.index = 0
        elseif operation == "return" then
          special.index = 0
        elseif special.clamps then
          return operation == "take" and "check" or operation, part("clamp")(limit, key, costs, id)
        end
        return operation, costs
      end

      return function(limit, key, _, operation, costs, id)
        local record = special.record
        local state = record and expect(redis.pcall("HMGET", record, "e", "r", "d", "f"))
        operation, costs = planned(limit, key, operation, costs, id, state)
        local admitted = decide(limit, key, nil, operation, costs, id, true, false, false)
        special.taken, special.admitted = costs, admitted
        if operation == "settle" then
          expect(redis.pcall("HSET", record, "d", "1"))
        elseif operation == "reserve" and admitted then
          part("keep")(limit, record, costs)
        end
        if state and not state[1] and not state[3] and admitted then
          expect(redis.pcall("PEXPIRE", record, special.hold_ms))
        end
      end
    end

    -- Lowers the capacity of a limit to the share that the request may use, at least 1.
    if name == "share" then
      return function(limit)
        limit.own = limit.own or { limit.max, limit.capacity, limit.window_us, limit.calendar_at }
        limit.changed = limit.changed or 0
        if limit.capacity > 0 then
          limit.capacity = math.max(math.floor(limit.capacity * special.share + 0.000001), 1)
        end
      end
    end

    -- Returns the costs lowered to what fits in every enforced limit, at least 1.
    if name == "clamp" then
      return function(limit, key, costs, id)
        local taken = type(costs) == "table" and costs or { costs }
        part("decide")(limit, key, nil, "peek", limit.position and { 0 } or 0, id, true, false, false)
        while limit do
          if not limit.shadow and not limit.unlimited and limit.algorithm ~= "concurrency" then
            local room, position = math.floor(limit.capacity + limit.slack - limit.used), limit.position or 1
            taken[position] = math.min(taken[position] + 0, math.max(room, 1))
          end
          limit = limit.next
        end
        return type(costs) == "table" and taken or taken[1]
      end
    end

    -- Finds what a settle moves in a limit: it frees a slot, charges what is beyond the estimate, or gives back the rest.
    if name == "move" then
      return function(limit, cost)
        special.index = special.index + 1
        limit.changed = limit.changed or 0 -- what is noted in the limit is for this request only
        local receipt = special.receipts[special.index]
        local estimate = (special.estimate[limit.position or 1] or special.estimate[1]) + 0
        if limit.unlimited then
          return
        elseif limit.algorithm == "concurrency" then
          limit.amount = limit.holds and -1 or 0
        elseif receipt ~= "-" and cost > estimate then
          limit.amount = cost - estimate
        elseif receipt and receipt ~= "-" and cost < estimate then
          local _, _, _, _, give = algorithm(limit.algorithm, true)
          limit.amount = -give(limit, receipt, estimate, estimate - cost)
        end
      end
    end

    -- Finds what a return gives back. The answer to the check may have been under way for a while, as this request was: so
    -- at_us, when it arrived, is later than the check was decided, and a window found by it ends later than it does. The
    -- next window ends a whole window later at least. Of entries in a log the oldest that may be meant is taken: what stays
    -- counts for longer.
    if name == "give_since" then
      local function is_near(found_us, end_us, length_us)
        return found_us > end_us - length_us / 8 and found_us < end_us + length_us / 2
      end

      local function log_receipt(limit, cost)
        local from, to = string.format("%.0f", special.at_us - 250000), string.format("%.0f", special.at_us + 50000)
        local entries = expect(redis.pcall("ZRANGEBYSCORE", limit.key, from, to, "WITHSCORES", "LIMIT", 0, 256))
        for index = 1, #entries, 2 do
          if tonumber(string.match(entries[index], ":(%d+)$")) == cost then
            return string.format("%.0f", entries[index + 1])
          end
        end
      end

      local function receipt_of(limit, cost, found_us)
        local left_us, length_us = limit.left_us or limit.reset_us, limit.length_us
        if limit.algorithm == "sliding_window_log" then
          return log_receipt(limit, cost)
        elseif is_near(found_us, now_us + left_us, length_us) then
          return string.format("%.0f", now_us + left_us)
        elseif limit.left_us and is_near(found_us, now_us + left_us - length_us, length_us) then
          return string.format("%.0f", now_us + left_us - length_us)
        end
      end

      return function(limit, cost)
        special.index = special.index + 1
        limit.changed = limit.changed or 0 -- what is noted in the limit is for this request only
        local found_us = special.at_us + special.resets[special.index]
        if limit.unlimited or limit.clamped or limit.algorithm == "concurrency" or cost == 0 then
          return
        elseif limit.algorithm == "token_bucket" then
          limit.is_giving = true
          limit.amount = -math.max(math.min(cost, limit.used, (found_us - now_us) * limit.max / limit.window_us), 0)
          return
        end
        local receipt = receipt_of(limit, cost, found_us)
        if receipt then
          local _, _, _, _, give = algorithm(limit.algorithm, true)
          limit.amount = -give(limit, receipt, cost, cost)
        end
      end
    end

    -- Writes the record of a reservation: what was reserved, and the receipt of each limit. Of limits that share a key,
    -- the last one has moved the counter.
    if name == "keep" then
      local function receipt_of(limit)
        local mover, other = limit, limit.next
        while other do
          mover, other = other.key == limit.key and not other.unlimited and other or mover, other.next
        end
        if not limit.admits or limit.unlimited or limit.algorithm == "concurrency" then
          return "-"
        elseif limit.amount == 0 then
          return "0"
        end
        local _, _, _, receipt = algorithm(limit.algorithm, true)
        return receipt(mover)
      end

      return function(limit, record, costs)
        local receipts, estimate = receipt_of(limit), nil
        for index = 1, type(costs) == "table" and #costs or 1 do
          local cost = string.format("%.0f", type(costs) == "table" and costs[index] or costs)
          estimate = estimate and estimate .. "," .. cost or cost
        end
        while limit.next do
          limit = limit.next
          receipts = receipts .. "," .. receipt_of(limit)
        end
        expect(redis.pcall("HSET", record, "e", estimate, "r", receipts, "f", special.fingerprint))
      end
    end

    -- Writes what was taken into the reply, and returns its new size.
    if name == "report_taken" then
      return function(reply, size)
        local taken = type(special.taken) == "table" and special.taken or { special.taken }
        for index = 1, #taken do
          reply[size + index] = special.admitted and taken[index] + 0 or 0
        end
        return size + #taken
      end
    end
  end

  -- The embedded store keeps the functions, which Redis creates anew for each call.
  if ARGV[1] == "define" then
    local function once(make)
      local made = {}
      return function(name)
        local functions = made[name]
        if not functions then
          functions = { make(name, true) }
          made[name] = functions
        end
        return functions[1], functions[2], functions[3], functions[4], functions[5]
      end
    end
    algorithm, part = once(algorithm), once(part)
  end
  return part(first_name)
end
part = library

-- The fast path: decides a check by a plain policy in local variables, without the tables and functions of the general
-- path. Reads and judges the limit at a position in ARGV, calls itself for the next limit, and on the way back, when all
-- limits are known, spends and reports. Costs are texts as they stand in ARGV, as Redis is slow to turn a number into a
-- text: one for all limits, or a list. Returns whether all limits admit, and where the next request begins in ARGV, KEYS
-- and the reply. Returns nil, having written nothing, if only the general path can decide: an override lifts a limit or
-- refuses until some time, or the clock was set back. Flags have names in comments here: locals would cost 1 % of a batch.
function check(at, flags, key, costs, admitted, reply, size, fields)
  local next_at, next_key, next_size, amount, calendar_at = at + 3, key + 1, size + 6, costs, nil
  if flags >= 512 then
    if flags % 1024 >= 512 then -- has a position
      amount, next_at = costs[ARGV[next_at] + 0] or costs[1], next_at + 1
    end
    if flags >= 1024 then -- has boundaries
      calendar_at, next_at = next_at, next_at + 4
    end
  end
  local cost, max, window_us, admits, retry_us, changed = amount + 0, ARGV[at + 1] + 0, ARGV[at + 2] + 0, true, 0, 0
  if flags % 4 >= 2 then -- brings an override key
    fields = redis.pcall("EXISTS", KEYS[key], KEYS[key + 1]) ~= 0 and part("overrides")(key)
    key, next_key = key + 2, key + 3
  end
  local state_key = KEYS[key]
  if fields and flags % 8 >= 2 then -- has an override
    local limit = { flags = flags, key = state_key, max = max, window_us = window_us, calendar_at = calendar_at }
    part("override")(limit, fields)
    max, window_us, changed, calendar_at = limit.max, limit.window_us, limit.changed, limit.calendar_at
    if limit.unlimited or limit.until_us then
      return nil
    end
  end
  local used, reset_us, length_us = read_window(state_key, window_us)
  if length_us then
    return nil
  end
  if used + cost > max or max == 0 then
    local room
    admits, room = part("fit")(used, max, cost, 0)
    admitted, retry_us = admitted and admits, admits and 0 or room and reset_us or -1
  end
  if flags % 2 == 1 then -- another limit follows
    admitted, next_at, next_key, next_size =
      check(next_at, ARGV[next_at] + 0, next_key, costs, admitted, reply, next_size, fields)
    if admitted == nil then
      return nil
    end
  end
  if admitted and cost > 0 then
    used = used + cost
    if reset_us == 0 then
      local aligned, stale = flags % 32 >= 16, nil
      reset_us, stale = part("open")(state_key, used, window_us, aligned, calendar_at)
      changed = changed + stale
    else
      local total = redis.pcall("HINCRBY", state_key, "n", amount)
      if total ~= used then
        part("expect")(total)
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

-- Answers each request from a position in ARGV on. Without a position, reads the clock and begins with the first request.
local function answer(at, key, reply, size, general)
  if not at then
    if ARGV[1] == "2" then
      local time = redis.call("TIME")
      now_us = time[1] * 1000000 + time[2]
    else
      now_us = string.sub(ARGV[1], 3) + 0
    end
    at, key, reply, size = 2, 1, { 0, 0, 0, 0, 0, 0 }, 0 -- room for one limit's answer from the start
  end
  local ok, outcome, next_at, next_key, next_size = true, nil, nil, nil, nil
  if ARGV[at] == "check" then
    local limits_at, flags, costs = at + 2, ARGV[at + 2] + 0, ARGV[at + 1]
    if flags < 0 then
      limits_at, flags = -flags, ARGV[-flags] + 0
    end
    if flags % 16 < 8 then -- the policy is plain
      if flags % 1024 >= 512 then -- limits have positions
        costs = part("costs")(costs)
      end
      ok, outcome, next_at, next_key, next_size = pcall(check, limits_at, flags, key, costs, true, reply, size)
      next_at = limits_at == at + 2 and next_at or at + 3
    end
  elseif ARGV[at] == "reserve" or ARGV[at] == "settle" then
    ok, outcome, next_at, next_key, next_size = pcall(part(ARGV[at]), at, key, reply, size)
  end
  if outcome == nil or not ok then
    general = general or part("general")
    next_at, next_key, next_size = general(at, key, reply, size, outcome)
  end
  if ARGV[next_at] then
    return answer(next_at, next_key, reply, next_size, general)
  end
  return reply
end

-- The embedded store calls `answer` itself, as often as it has requests.
if ARGV[1] == "define" then
  part("expect")
  return answer
end
return answer()
