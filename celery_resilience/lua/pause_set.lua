-- Pause a queue or a task; one that is paused already gets the new words and the new end.
-- KEYS[1] all   hash: 'queue:NAME' or 'task:NAME' -> JSON {who, why, at, until}; no TTL, at most ARGV[5] fields
-- ARGV[1] field   ARGV[2] who   ARGV[3] why   ARGV[4] seconds it lasts, or '' for until it is resumed
-- ARGV[5] how many pauses at the most
-- returns the JSON that was stored, or false if there are too many
local time = redis.call('TIME')
local now = tonumber(time[1]) + math.floor(tonumber(time[2]) / 1000) / 1000
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[5]) then
    return false
end
local ends = cjson.null
if ARGV[4] ~= '' then
    ends = now + tonumber(ARGV[4])
end
local stored = cjson.encode({who = ARGV[2], why = ARGV[3], at = now, ['until'] = ends})
redis.call('HSET', KEYS[1], ARGV[1], stored)
return stored
