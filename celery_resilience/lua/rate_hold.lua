-- Let nobody through a rate for a while: the server asked for rest.
-- KEYS[1] rate     string: theoretical arrival time of the next call, in microseconds; TTL until it lies in the past
-- ARGV[1] microseconds of rest   ARGV[2] microseconds that a burst may come early: it must not end the rest
-- returns the theoretical arrival time of the next call in microseconds
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local arrival = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now + tonumber(ARGV[1]) + tonumber(ARGV[2]))
redis.call('SET', KEYS[1], string.format('%.0f', arrival), 'PX', math.ceil((arrival - now) / 1000) + 1000)
return string.format('%.0f', arrival)
