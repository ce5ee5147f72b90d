-- Look at a breaker without touching it.
-- include _breaker
-- returns JSON as breaker_sync does, with since, opens, successes, reason, who, why, policy, probes and used; '' if unknown
load()
if it.is_new then return '' end
if it.mode ~= '' and it.mode_until > 0 and now >= it.mode_until then
    it.mode, it.mode_until, it.who, it.why = '', 0, '', ''
end
if it.policy ~= '' then policy = cjson.decode(it.policy) end  -- who looks may not know it
return answer({
    since = it.since, opens = it.opens, successes = it.successes, who = it.who, why = it.why,
    policy = it.policy, probes = redis.call('ZCOUNT', probes, '(' .. string.format('%.0f', now), '+inf'),
    used = tonumber(redis.call('ZSCORE', index, name) or '0'),
})
