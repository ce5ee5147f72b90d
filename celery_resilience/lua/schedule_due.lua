-- Look what is due, without taking it.
-- KEYS[1] due      sorted set: member -> due time in ms
-- ARGV[1] how many members at the most
-- returns {now in ms, next due time in ms or -1, member, member, …}
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local members = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
local following = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local answer = {now, tonumber(following[2] or -1)}
for _, member in ipairs(members) do
    answer[#answer + 1] = member
end
return answer
