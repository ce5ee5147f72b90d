-- Renew the lease of the messages that a worker holds, by the server's clock.
-- KEYS[1] unacked index of kombu: sorted set: delivery tag -> time in seconds; bounded by what is in work
-- ARGV    delivery tags
-- returns the tags that are no longer in the index: acked meanwhile, or given to somebody else
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local gone = {}
for _, tag in ipairs(ARGV) do
    if redis.call('ZSCORE', KEYS[1], tag) then
        redis.call('ZADD', KEYS[1], 'XX', now, tag)
    else
        gone[#gone + 1] = tag
    end
end
return gone
