-- Ask a shared rate for one call, by the generic cell rate algorithm; a call that must wait has its slot reserved.
-- KEYS[1] rate     string: theoretical arrival time of the next call, in microseconds; TTL until it lies in the past
-- ARGV[1] microseconds between two calls   ARGV[2] calls that may come at once
-- ARGV[3] longest wait in microseconds for which a slot is reserved
-- returns {1, 0} admitted now, {1, wait} reserved: come in `wait` microseconds without asking again,
--         {0, wait} neither: the next slot is further away than may be reserved
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local interval = tonumber(ARGV[1])
local arrival = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
local wait = math.max(0, arrival - (tonumber(ARGV[2]) - 1) * interval - now)
if wait > tonumber(ARGV[3]) then
    return {0, wait}
end
local following = arrival + interval
redis.call('SET', KEYS[1], string.format('%.0f', following), 'PX', math.ceil((following - now) / 1000) + 1000)
return {1, wait}
