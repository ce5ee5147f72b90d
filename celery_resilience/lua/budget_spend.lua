-- Spend from a retry budget: a bucket that successes fill by their share, and time by a base rate.
-- A retry beyond the budget is spent in advance and waits its turn: a storm becomes a line. A full line takes nothing.
-- KEYS[1] budget   hash: tokens (float, below 0: spent in advance), at (ms of the last change); TTL one day
-- ARGV[1] cost   ARGV[2] successes since the last report   ARGV[3] tokens per success
-- ARGV[4] tokens per second   ARGV[5] most tokens the bucket holds   ARGV[6] ms of the longest turn that is given
-- returns {1, ms until its turn} spent, {0, ms until there may be a turn} not spent
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local most = tonumber(ARGV[5])
local known = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = tonumber(known[1] or most)
local elapsed = math.max(0, now - tonumber(known[2] or now))
tokens = math.min(most, tokens + elapsed / 1000 * tonumber(ARGV[4]) + tonumber(ARGV[2]) * tonumber(ARGV[3]))
local cost, longest, wait, spent = tonumber(ARGV[1]), tonumber(ARGV[6]), 0, 1
if tokens < cost then
    wait = math.ceil((cost - tokens) / tonumber(ARGV[4]) * 1000)
end
if wait > longest then
    spent, wait = 0, wait - longest
else
    tokens = tokens - cost
end
redis.call('HSET', KEYS[1], 'tokens', tostring(tokens), 'at', now)
redis.call('EXPIRE', KEYS[1], 86400)
return {spent, wait}
