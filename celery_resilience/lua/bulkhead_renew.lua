-- Renew the leases of places that are still held.
-- KEYS[1] places   sorted set: token -> end of its lease in ms, and '' -> +inf; TTL a little longer than a lease
-- ARGV[1] lease in ms   ARGV[2…] tokens
-- returns how many of them still had their place
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local kept = 0
local is_lost = redis.call('EXISTS', KEYS[1]) == 0 -- by a failover or a restart without AOF: who runs has a place
for i = 2, #ARGV do
    if is_lost or redis.call('ZSCORE', KEYS[1], ARGV[i]) then
        redis.call('ZADD', KEYS[1], now + tonumber(ARGV[1]), ARGV[i])
        kept = kept + 1
    end
end
if is_lost then redis.call('ZADD', KEYS[1], '+inf', '') end -- from now on, a place that is not there was left
redis.call('PEXPIRE', KEYS[1], tonumber(ARGV[1]) + 60000)
return kept
