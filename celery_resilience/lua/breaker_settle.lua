-- Give a probe's permit back with its outcome: enough successes close the breaker, one failure opens it again.
-- include _breaker
-- ARGV[5] generation of the permit   ARGV[6] token   ARGV[7] 'success', 'failure', 'slow' or 'cancel'
-- ARGV[8] ms the failure asked to wait, -1 if it did not
-- returns JSON as breaker_sync does, without granted and wait; an outcome of another generation changes nothing
load()
release_if_over()
if it.mode == '' and it.state == 'half-open' and tonumber(ARGV[5]) == it.generation then
    if ARGV[7] == 'success' then
        it.successes = it.successes + 1
        if it.successes >= policy.successes_to_close then
            local from = close(it.successes .. ' probes succeeded', true)
            tell('closed', from, 'closed', it.reason)
        end
    elseif ARGV[7] == 'failure' or ARGV[7] == 'slow' then
        open(ARGV[7] == 'slow' and 'a probe was slow' or 'a probe failed', tonumber(ARGV[8]))
    end
end
save()
publish()
if it.drop_probes then
    redis.call('DEL', probes)
else
    redis.call('ZREM', probes, ARGV[6])
end
return answer()
