-- Forget letters that are in the ledger.
-- KEYS[1] leases  sorted set: name of a held letter -> end of its lease in ms
-- KEYS[2] held    hash: the same names -> packed letter
-- ARGV    names
-- returns how many there were
redis.call('ZREM', KEYS[1], unpack(ARGV))
return redis.call('HDEL', KEYS[2], unpack(ARGV))
