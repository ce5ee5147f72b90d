-- Record an attempt of a lineage that was published without the schedule.
-- KEYS[1] highest  string: highest attempt stored for the lineage; TTL ARGV[2]
-- ARGV[1] attempt   ARGV[2] TTL in seconds
-- returns the highest attempt on record now
local highest = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), tonumber(ARGV[1]))
redis.call('SET', KEYS[1], highest, 'EX', ARGV[2])
return highest
