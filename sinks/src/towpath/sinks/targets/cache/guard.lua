#!lua name=towpath
-- Compare and write, in one step, the rows of a batch, of any routes.
--
-- towpath_apply KEYS: one hash per row. ARGV[1]: seconds that a tombstone lives.
-- ARGV[2]: JSON, one entry per row: [position, mode, [field, text, ...], [null, ...]]
-- with mode "f" (full image), "p" (partial: other fields stay) or "x" (delete).
-- Returns the numbers of applied and of stale rows, then the indexes (from 1) of the
-- partial rows that have no row to be merged with.
--
-- towpath_apply_columns KEYS: one hash per row, no two the same. ARGV[1]: JSON, the
-- names of the fields, then of each field the texts of all rows, null where a row has
-- none: [[name, ...], [text, ...], ...]. The last field is the position. Writes whole
-- rows, and returns the numbers of applied and of stale rows.
--
-- towpath_sweep KEYS: some rows. ARGV[1]: a position. Deletes the rows below it,
-- tombstones too, and returns their number. A value without a position is not a row,
-- and stays.
--
-- towpath_witness KEYS[1]: a witness. ARGV[1]: its id, ARGV[2]: the count that it must
-- have reached. Increments the count and returns it; returns 0 if the count is too low,
-- and -1 if the witness is missing or has another id.
--
-- A position is 16 hex digits, a dot, and an ordinal or "-" (below every ordinal).
-- Lua compares strings by the server's locale and holds no integer above 2^53: so the
-- parts are compared as numbers of at most 34 bits each. Any other text is below every
-- position: another program wrote it.

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

local function set(key, fields, count)
  -- Lua's stack bounds how many values one call takes; Postgres allows 1,600 columns.
  for first = 1, count, 1000 do
    redis.call('HSET', key, unpack(fields, first, math.min(first + 999, count)))
  end
end

local function remove(key, fields)
  for first = 1, #fields, 1000 do
    redis.call('HDEL', key, unpack(fields, first, math.min(first + 999, #fields)))
  end
end

-- Overwriting is much cheaper than deleting first. Fields that the new image lacks
-- (nulls, dropped columns, the mark of a tombstone) show in the number of fields. The
-- deletion of a tombstone also ends its expiry.
local function replace(key, fields, count)
  set(key, fields, count)
  if redis.call('HLEN', key) ~= count / 2 then
    redis.call('DEL', key)
    set(key, fields, count)
  end
end

local function position_of(key)
  local stored = redis.pcall('HGET', key, '_position')
  if type(stored) ~= 'table' then return stored end
  -- An error: another program's value under the name of a row is not a hash.
  redis.call('DEL', key)
  return false
end

local function is_tombstone(key)
  return redis.call('HEXISTS', key, '_x') == 1
end

local function apply(keys, arguments)
  local applied, stale, absent = 0, 0, {}
  for index, row in ipairs(cjson.decode(arguments[2])) do
    local key, position, mode, fields = keys[index], row[1], row[2], row[3]
    local stored = position_of(key)
    if stored and is_above(stored, position) then
      stale = stale + 1
    elseif mode == 'p' and (not stored or is_tombstone(key)) then
      absent[#absent + 1] = index
    else
      fields[#fields + 1] = '_position'
      fields[#fields + 1] = position
      if mode == 'p' then
        remove(key, row[4])
        set(key, fields, #fields)
      else
        replace(key, fields, #fields)
      end
      if mode == 'x' then redis.call('EXPIRE', key, arguments[1]) end
      applied = applied + 1
    end
  end
  return {applied, stale, unpack(absent)}
end

local function apply_columns(keys, arguments)
  local applied, stale = 0, 0
  local columns = cjson.decode(arguments[1])
  local names = table.remove(columns, 1)
  local positions = columns[#columns]
  -- One call for all keys, because most rows that come in bulk are new.
  local are_new = redis.call('EXISTS', unpack(keys)) == 0
  local fields = {}
  for index, key in ipairs(keys) do
    local position = positions[index]
    local stored = not are_new and position_of(key)
    if stored and is_above(stored, position) then
      stale = stale + 1
    else
      local count = 0
      for place, name in ipairs(names) do
        local text = columns[place][index]
        if text ~= cjson.null then
          fields[count + 1], fields[count + 2] = name, text
          count = count + 2
        end
      end
      if are_new then
        set(key, fields, count)
      else
        replace(key, fields, count)
      end
      applied = applied + 1
    end
  end
  return {applied, stale}
end

local function sweep(keys, arguments)
  local swept = 0
  for _, key in ipairs(keys) do
    local stored = redis.pcall('HGET', key, '_position')
    if type(stored) == 'string' and is_above(arguments[1], stored) then
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
redis.register_function('towpath_apply_columns', apply_columns)
redis.register_function('towpath_sweep', sweep)
redis.register_function('towpath_witness', witness)
