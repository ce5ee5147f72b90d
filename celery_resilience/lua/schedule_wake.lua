-- Make parked messages due now, spread over a while: what they waited for has come.
-- KEYS[1] due      sorted set: member -> due time in ms
-- KEYS[2] parked   sorted set: member -> due time in ms, of what waits for one thing; TTL renewed with each
-- ARGV[1] how many at the most   ARGV[2] ms over which they are spread   ARGV[3] ms before the first of them
-- returns {how many were looked at, how many of them were woken}
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local members = redis.call('ZRANGE', KEYS[2], 0, tonumber(ARGV[1]) - 1)
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, tonumber(ARGV[1]) - 1)
local woken = 0
for i, member in ipairs(members) do
    local due = tonumber(redis.call('ZSCORE', KEYS[1], member) or '0')
    if due > now then
        redis.call('ZADD', KEYS[1], 'XX', math.min(due, now + tonumber(ARGV[3]) + math.floor(tonumber(ARGV[2]) * i / #members)), member)
        woken = woken + 1
    end
end
return {#members, woken}
