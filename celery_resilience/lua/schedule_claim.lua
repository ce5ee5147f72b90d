-- Lease due messages to one publisher: until the lease ends nobody else sees them as due.
-- KEYS[1] due      sorted set: member -> due time in ms
-- KEYS[2] entries  hash: member -> packed message
-- ARGV[1] lease in ms   ARGV[2…] members
-- returns {member, packed message, member, packed message, …} of those that were still due
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local answer = {}
for i = 2, #ARGV do
    local due = tonumber(redis.call('ZSCORE', KEYS[1], ARGV[i]) or 'inf')
    if due <= now then
        local message = redis.call('HGET', KEYS[2], ARGV[i])
        if message then
            redis.call('ZADD', KEYS[1], 'XX', now + tonumber(ARGV[1]), ARGV[i])
            answer[#answer + 1] = ARGV[i]
            answer[#answer + 1] = message
        else
            redis.call('ZREM', KEYS[1], ARGV[i])
        end
    end
end
return answer
