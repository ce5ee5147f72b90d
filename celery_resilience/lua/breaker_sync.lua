-- Take in what a process counted, trip if that is enough, and say how things stand; with a token also ask for a permit.
-- include _breaker
-- ARGV[5] generation of the counts, 0 from a process that could not ask   ARGV[6…9] successes, slow successes, failures, slow failures
-- ARGV[10] ms the failures asked to wait, -1 if they did not   ARGV[11] token of a wanted permit (that of a probe is good while its lease lasts), or ''
-- ARGV[12] what was counted while Redis could not be asked, the oldest first, as JSON:
--   [[age in ms, successes, slow successes, failures, slow failures], …], or ''
-- returns JSON: state, generation, now, until, calls, failures, slow, consecutive, mode, mode_until, ramp,
--   granted (of a permit in half-open), wait (ms until a permit may be free), breakers (in the index), told (transitions)
load()
release_if_over()
it.policy = ARGV[4]
local generation = tonumber(ARGV[5])
if it.state == 'closed' and (it.is_new or generation == 0 or generation == it.generation) then
    for _, run in ipairs(ARGV[12] ~= '' and cjson.decode(ARGV[12]) or {}) do
        add(now - run[1], run[2], run[3], run[4], run[5])
    end
    add(now, tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9]))
    local reason = it.mode == '' and trip_reason()
    if reason then open(reason, tonumber(ARGV[10])) end
end
local wants = ARGV[11] ~= ''
if wants and it.state == 'open' and now >= it['until'] then half_open() end
save()
publish()
if it.drop_probes then redis.call('DEL', probes) end
local granted, wait = false, 0
if wants and it.state == 'half-open' then
    redis.call('ZREMRANGEBYSCORE', probes, '-inf', now)
    if redis.call('ZSCORE', probes, ARGV[11]) then  -- a call within the probe
        granted = true
    elseif redis.call('ZCARD', probes) < policy.half_open_permits then
        local lease = math.floor(policy.probe_lease_seconds * 1000)
        redis.call('ZADD', probes, now + lease, ARGV[11])
        redis.call('PEXPIRE', probes, 2 * lease)
        granted = true
    else
        wait = tonumber(redis.call('ZRANGE', probes, 0, 0, 'WITHSCORES')[2]) - now
    end
end
return answer({granted = granted, wait = wait, breakers = redis.call('ZCARD', index)})
