-- Count a start that ended with the death of its process, seen by the process that watches over it.
-- KEYS[1] starts  hash: n (starts on record that did not end), known (1 if the first start is among them); TTL ARGV[2]
-- ARGV[1] '1' if this was the first delivery, whose start is not on record yet   ARGV[2] TTL in seconds
-- returns how many starts did not end, this one included
if ARGV[1] == '1' then
    redis.call('HINCRBY', KEYS[1], 'n', 1)
    redis.call('HSET', KEYS[1], 'known', 1)
    redis.call('EXPIRE', KEYS[1], ARGV[2])
end
local starts = tonumber(redis.call('HGET', KEYS[1], 'n') or '0')
if not redis.call('HGET', KEYS[1], 'known') then
    starts = starts + 1
end
return starts
