-- Forget messages that were published.
-- KEYS[1] due      sorted set: member -> due time in ms
-- KEYS[2] entries  hash: member -> packed message
-- ARGV    members
-- returns how many there were
redis.call('HDEL', KEYS[2], unpack(ARGV))
return redis.call('ZREM', KEYS[1], unpack(ARGV))
