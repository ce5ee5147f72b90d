-- Put a message into the schedule, once per attempt of a lineage.
-- KEYS[1] due      sorted set: member -> due time in ms; bounded by what waits
-- KEYS[2] entries  hash: member -> packed message; lives as long as its member in KEYS[1]
-- KEYS[3] highest  string: highest attempt stored for the lineage; TTL ARGV[6]
-- KEYS[4] parked   (parks only) sorted set: member -> due time in ms, of what waits for the same thing; bounded by
--                  what waits, TTL ARGV[6], renewed with each
-- ARGV[1] member   ARGV[2] packed message   ARGV[3] ms   ARGV[4] 'in' (from now) or 'at' (since the epoch)
-- ARGV[5] attempt   ARGV[6] TTL of KEYS[3] in seconds
-- ARGV[7] 'once' to store nothing if the attempt is on record, 'anyway' if the record may be of another message
-- returns the due time in ms, or 0 if this attempt was stored before: a twin of the run came first
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local attempt = tonumber(ARGV[5])
if ARGV[7] == 'once' and tonumber(redis.call('GET', KEYS[3]) or '0') >= attempt then
    return 0
end
local due = tonumber(ARGV[3])
if ARGV[4] == 'in' then
    due = now + due
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[1], due, ARGV[1])
redis.call('SET', KEYS[3], attempt, 'EX', ARGV[6])
if KEYS[4] then
    -- what came due by itself is never woken: without this the set would grow for as long as something parks
    redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
    redis.call('ZADD', KEYS[4], due, ARGV[1])
    redis.call('EXPIRE', KEYS[4], ARGV[6])
end
return due
