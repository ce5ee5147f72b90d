-- Put held letters back to the front of their queue.
-- KEYS[1] queue   list of the broker: letters, the oldest at its right end
-- KEYS[2] leases  sorted set: name of a held letter -> end of its lease in ms
-- KEYS[3] held    hash: the same names -> packed letter
-- ARGV    names, the oldest first
-- returns how many were put back
local moved = 0
for i = #ARGV, 1, -1 do
    local letter = redis.call('HGET', KEYS[3], ARGV[i])
    if letter then
        redis.call('RPUSH', KEYS[1], letter)
        redis.call('HDEL', KEYS[3], ARGV[i])
        moved = moved + 1
    end
    redis.call('ZREM', KEYS[2], ARGV[i])
end
return moved
