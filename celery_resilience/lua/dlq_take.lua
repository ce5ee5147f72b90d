-- Lease letters to one collector: first those whose lease has ended, then the oldest of the queue.
-- KEYS[1] queue   list of the broker: letters, the oldest at its right end
-- KEYS[2] leases  sorted set: name of a held letter -> end of its lease in ms
-- KEYS[3] held    hash: the same names -> packed letter; bounded by what collectors hold, so without a TTL
-- ARGV[1] how many at the most   ARGV[2] lease in ms   ARGV[3] a token for names that nobody else gives
-- ARGV[4] bytes after which no more are taken
-- returns {name, packed letter, name, packed letter, …}
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local limit, ends = tonumber(ARGV[1]), now + tonumber(ARGV[2])
local answer, bytes = {}, 0
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, limit)) do
    if bytes >= tonumber(ARGV[4]) then
        return answer
    end
    local letter = redis.call('HGET', KEYS[3], name)
    if letter then
        bytes = bytes + #letter
        redis.call('ZADD', KEYS[2], ends, name)
        answer[#answer + 1] = name
        answer[#answer + 1] = letter
    else
        redis.call('ZREM', KEYS[2], name)
    end
end
for i = #answer / 2 + 1, limit do
    -- written down before it is taken away: refused for want of memory, the script ends with the queue as it was
    local letter = redis.call('LINDEX', KEYS[1], -1)
    if not letter or bytes >= tonumber(ARGV[4]) then
        break
    end
    bytes = bytes + #letter
    local name = ARGV[3] .. ':' .. i
    redis.call('HSET', KEYS[3], name, letter)
    redis.call('ZADD', KEYS[2], ends, name)
    redis.call('RPOP', KEYS[1])
    answer[#answer + 1] = name
    answer[#answer + 1] = letter
end
return answer
