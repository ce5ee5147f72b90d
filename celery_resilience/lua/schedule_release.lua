-- Move due messages into a queue of a broker on the same server: no moment in which they are in neither or in both.
-- KEYS[1] due      sorted set: member -> due time in ms
-- KEYS[2] entries  hash: member -> packed message
-- KEYS[3] queue    list of the broker
-- ARGV[1] LPUSH for the end of the queue, RPUSH for its front   ARGV[2…] members
-- returns how many were moved; a member that another worker moved, or that is not due any more, is passed over
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local moved = 0
for i = 2, #ARGV do
    local member = ARGV[i]
    local due = tonumber(redis.call('ZSCORE', KEYS[1], member) or 'inf')
    if due <= now then
        local message = redis.call('HGET', KEYS[2], member)
        if message then
            -- the push comes first: refused for want of memory it ends the script with nothing taken away
            redis.call(ARGV[1], KEYS[3], message)
            moved = moved + 1
        end
        redis.call('HDEL', KEYS[2], member)
        redis.call('ZREM', KEYS[1], member)
    end
end
return moved
