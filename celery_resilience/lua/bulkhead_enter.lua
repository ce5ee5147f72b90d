-- Take a place in a bulkhead, for a lease that its holder renews.
-- KEYS[1] places   sorted set: token -> end of its lease in ms; TTL a little longer than a lease
--   '' -> +inf stays when the last place is left: a key that is missing was lost, not emptied
-- ARGV[1] token   ARGV[2] how many places there are   ARGV[3] lease in ms
-- returns {1, 0} with a place (the same token may ask again), {0, ms until the first lease ends} without
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local lease = tonumber(ARGV[3])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local taken = redis.call('ZCOUNT', KEYS[1], '-inf', '(+inf')
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) and taken >= tonumber(ARGV[2]) then
    local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
    return {0, math.max(0, tonumber(first[2]) - now)}
end
redis.call('ZADD', KEYS[1], now + lease, ARGV[1], '+inf', '')
redis.call('PEXPIRE', KEYS[1], lease + 60000)
return {1, 0}
