-- Renew the leases of places that are still held.
-- KEYS[1] places   sorted set: token -> end of its lease in ms
-- ARGV[1] lease in ms   ARGV[2…] tokens
-- returns how many of them still had their place
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local kept = 0
for i = 2, #ARGV do
    if redis.call('ZSCORE', KEYS[1], ARGV[i]) then
        redis.call('ZADD', KEYS[1], 'XX', now + tonumber(ARGV[1]), ARGV[i])
        kept = kept + 1
    end
end
redis.call('PEXPIRE', KEYS[1], tonumber(ARGV[1]) + 60000)
return kept
