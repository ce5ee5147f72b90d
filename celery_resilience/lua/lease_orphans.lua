-- List the messages whose lease nobody renewed for a whole timeout.
-- KEYS[1] unacked index of kombu: sorted set: delivery tag -> time in seconds
-- ARGV[1] timeout in seconds   ARGV[2] how many at the most
-- returns delivery tags, the longest unrenewed first
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[1]), 'LIMIT', 0, ARGV[2])
