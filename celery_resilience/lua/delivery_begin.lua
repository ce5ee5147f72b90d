-- Look at a message that is redelivered or requeued, before its body runs, and record its start.
-- KEYS[1] highest  string: highest attempt stored for the lineage; written elsewhere
-- KEYS[2] starts   hash: n (starts on record that did not end), known (1 if the first start is among them); TTL ARGV[4]
-- KEYS[3] requeue  string: nonce of the one message of a requeue that may run; TTL ARGV[6]
-- ARGV[1] number of this message in its lineage   ARGV[2] '1' if it is redelivered
-- ARGV[3] starts after which it is poison, '0' to record none   ARGV[4] TTL in seconds
-- ARGV[5] nonce of its requeue, '' if it was not requeued   ARGV[6] TTL in seconds
-- returns {verdict, starts}: 'duplicate', 'behind', 'poison' (with the starts so far), or 'run' (with this one)
if ARGV[5] ~= '' then
    local nonce = redis.call('GET', KEYS[3])
    if nonce and nonce ~= ARGV[5] then
        return {'duplicate', 0}
    end
    if not nonce then
        redis.call('SET', KEYS[3], ARGV[5], 'EX', ARGV[6])
    end
end
if ARGV[2] ~= '1' then
    return {'run', 0}
end
if tonumber(redis.call('GET', KEYS[1]) or '0') > tonumber(ARGV[1]) then
    return {'behind', 0}
end
local limit = tonumber(ARGV[3])
if limit == 0 then
    return {'run', 0}
end
local recorded = tonumber(redis.call('HGET', KEYS[2], 'n') or '0')
local starts = recorded
if not redis.call('HGET', KEYS[2], 'known') then
    starts = starts + 1 -- the first start is never recorded, so that it costs nothing
end
-- Without any record it may only have been prefetched by a worker that ended: nothing is poison on that alone.
if recorded > 0 and starts >= limit then
    return {'poison', starts}
end
redis.call('HINCRBY', KEYS[2], 'n', 1)
redis.call('EXPIRE', KEYS[2], ARGV[4])
return {'run', starts + 1}
