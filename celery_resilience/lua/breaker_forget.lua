-- Forget breakers that nobody has used for long; one used since it was looked at, or overridden, stays.
-- KEYS[1] index   sorted set: breaker -> last use in ms
-- KEYS[2…] hash and probes of each breaker, in the order of ARGV
-- ARGV[1] how many at the most   ARGV[2…] name, last use in ms, name, last use in ms, …
-- returns how many were forgotten
local forgotten = 0
for i = 2, #ARGV, 2 do
    if forgotten == tonumber(ARGV[1]) then break end
    local name, hash, probes = ARGV[i], KEYS[i], KEYS[i + 1]
    local used = redis.call('ZSCORE', KEYS[1], name)
    if used and tonumber(used) <= tonumber(ARGV[i + 1]) then
        local mode = redis.call('HGET', hash, 'mode')
        if not mode or mode == '' then
            redis.call('DEL', hash, probes)
            redis.call('ZREM', KEYS[1], name)
            forgotten = forgotten + 1
        end
    end
end
return forgotten
