-- Push letters back into their queues, each of them once: a record is written in the same step.
-- KEYS[1…] in pairs: list of the broker, and record of the letter
--          record  string: 1; deleted once the ledger says that the letter is requeued, else TTL ARGV[2]
-- ARGV[1] end of the claim in ms   ARGV[2] TTL in seconds   ARGV[3…] messages
-- returns how many were pushed now, or -1 if the claim has ended: then another may be doing the same
local time = redis.call('TIME')
if tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000) > tonumber(ARGV[1]) then
    return -1
end
local pushed = 0
for i = 1, #KEYS / 2 do
    if redis.call('EXISTS', KEYS[2 * i]) == 0 then
        -- the push comes first: refused for want of memory, the letter is not on record and will be pushed again
        redis.call('LPUSH', KEYS[2 * i - 1], ARGV[i + 2])
        redis.call('SET', KEYS[2 * i], 1, 'EX', ARGV[2])
        pushed = pushed + 1
    end
end
return pushed
