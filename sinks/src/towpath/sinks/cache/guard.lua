#!lua name=towpath
-- Compare and write, in one step, for a batch of rows of any routes.
--
-- towpath_apply KEYS: one hash per row. ARGV[1]: seconds that a tombstone lives.
-- ARGV[2]: JSON, one entry per row: [position, mode, [field, text, ...], [null, ...]]
-- with mode "f" (full image), "p" (partial: other fields stay) or "x" (delete).
-- Answer: how many were applied, how many stale, then the indexes (from 1) of partial
-- rows that found no row to be partial of.
--
-- towpath_sweep KEYS: some rows. ARGV[1]: a position. Takes the rows below it away,
-- tombstones too, and answers how many.
--
-- towpath_witness KEYS[1]: a witness. ARGV[1]: its id, ARGV[2]: the count that it must
-- have reached. Counts on and answers the new count; or 0 if its count is too low, or
-- -1 if it is not there.
--
-- A position is 16 hex digits, a dot, and an ordinal or "-" (below every ordinal).
-- Lua compares strings by the server's locale and holds no integer above 2^53: so the
-- parts are compared as numbers of at most 34 bits each. What is no position is below
-- every position: someone else wrote it.

local function part(text, first, last)
  return tonumber(string.sub(text, first, last), 16) or -1
end

local function ordinal(text)
  return tonumber(string.sub(text, 18)) or -1
end

local function is_above(stored, offered)
  if stored == offered then return false end
  local a, b = part(stored, 1, 8), part(offered, 1, 8)
  if a ~= b then return a > b end
  a, b = part(stored, 9, 16), part(offered, 9, 16)
  if a ~= b then return a > b end
  return ordinal(stored) > ordinal(offered)
end

-- How many fields are new.
local function set(key, fields)
  local count = #fields
  if count <= 1000 then return redis.call('HSET', key, unpack(fields)) end
  -- Lua's stack bounds how many values one call takes; Postgres allows 1,600 columns.
  local added = 0
  for first = 1, count, 1000 do
    local last = math.min(first + 999, count)
    added = added + redis.call('HSET', key, unpack(fields, first, last))
  end
  return added
end

local function remove(key, fields)
  for first = 1, #fields, 1000 do
    redis.call('HDEL', key, unpack(fields, first, math.min(first + 999, #fields)))
  end
end

-- Overwriting is much cheaper than deleting first; what the new image no longer has
-- (nulls, dropped columns) shows in the count of fields.
local function replace(key, fields, is_new)
  local count = #fields / 2
  if set(key, fields) == count and is_new then return end
  if redis.call('HLEN', key) ~= count then
    redis.call('DEL', key)
    set(key, fields)
  end
end

local function position_of(key)
  local stored = redis.pcall('HMGET', key, '_position', '_x')
  if not stored.err then return stored[1], stored[2] end
  -- No hash: someone else's, under a name of ours.
  redis.call('DEL', key)
  return false, false
end

local function apply(keys, arguments)
  local applied, stale, absent = 0, 0, {}
  for index, row in ipairs(cjson.decode(arguments[2])) do
    local key, position, mode, fields = keys[index], row[1], row[2], row[3]
    local stored, is_deleted = position_of(key)
    if stored and is_above(stored, position) then
      stale = stale + 1
    elseif mode == 'p' and (not stored or is_deleted) then
      absent[#absent + 1] = index
    else
      fields[#fields + 1] = '_position'
      fields[#fields + 1] = position
      if mode == 'p' then
        remove(key, row[4])
        set(key, fields)
      elseif mode == 'x' or is_deleted then
        redis.call('DEL', key)
        set(key, fields)
      else
        replace(key, fields, not stored)
      end
      if mode == 'x' then redis.call('EXPIRE', key, arguments[1]) end
      applied = applied + 1
    end
  end
  return {applied, stale, unpack(absent)}
end

local function sweep(keys, arguments)
  local swept = 0
  for _, key in ipairs(keys) do
    local stored = redis.call('HGET', key, '_position')
    if stored and is_above(arguments[1], stored) then
      swept = swept + redis.call('DEL', key)
    end
  end
  return swept
end

local function witness(keys, arguments)
  local stored = redis.call('HMGET', keys[1], 'id', 'count')
  if stored[1] ~= arguments[1] then return -1 end
  if tonumber(stored[2]) < tonumber(arguments[2]) then return 0 end
  return redis.call('HINCRBY', keys[1], 'count', 1)
end

redis.register_function('towpath_apply', apply)
redis.register_function('towpath_sweep', sweep)
redis.register_function('towpath_witness', witness)
