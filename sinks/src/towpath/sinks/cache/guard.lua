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
-- A position is 16 hex digits, a dot, and an ordinal or "-" (below every ordinal).
-- Lua compares strings by the server's locale and holds no integer above 2^53: so the
-- parts are compared as numbers of at most 34 bits each.

local function part(text, first, last)
  return tonumber(string.sub(text, first, last), 16)
end

local function ordinal(text)
  return tonumber(string.sub(text, 18)) or -1
end

local function is_above(stored, offered)
  local a, b = part(stored, 1, 8), part(offered, 1, 8)
  if a ~= b then return a > b end
  a, b = part(stored, 9, 16), part(offered, 9, 16)
  if a ~= b then return a > b end
  return ordinal(stored) > ordinal(offered)
end

local function set(key, fields)
  -- Lua's stack bounds how many values one call takes; Postgres allows 1,600 columns.
  for first = 1, #fields, 1000 do
    redis.call('HSET', key, unpack(fields, first, math.min(first + 999, #fields)))
  end
end

local function remove(key, fields)
  for first = 1, #fields, 1000 do
    redis.call('HDEL', key, unpack(fields, first, math.min(first + 999, #fields)))
  end
end

-- Overwriting is much cheaper than deleting first; what the new image no longer has
-- (nulls, dropped columns) shows in the count of fields.
local function replace(key, fields)
  set(key, fields)
  if redis.call('HLEN', key) ~= #fields / 2 then
    redis.call('DEL', key)
    set(key, fields)
  end
end

local function apply(keys, arguments)
  local applied, stale, absent = 0, 0, {}
  for index, row in ipairs(cjson.decode(arguments[2])) do
    local key, position, mode, fields = keys[index], row[1], row[2], row[3]
    local stored = redis.call('HMGET', key, '_position', '_x')
    if stored[1] and is_above(stored[1], position) then
      stale = stale + 1
    elseif mode == 'p' and (not stored[1] or stored[2]) then
      absent[#absent + 1] = index
    else
      fields[#fields + 1] = '_position'
      fields[#fields + 1] = position
      if mode == 'p' then
        remove(key, row[4])
        set(key, fields)
      elseif mode == 'x' or stored[2] then
        redis.call('DEL', key)
        set(key, fields)
      else
        replace(key, fields)
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

redis.register_function('towpath_apply', apply)
redis.register_function('towpath_sweep', sweep)
