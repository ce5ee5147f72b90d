-- Override a breaker for the whole fleet, or with mode '' end the override and start anew.
-- include _breaker
-- ARGV[5] mode: 'open', 'closed', 'disabled' or ''   ARGV[6] who   ARGV[7] why   ARGV[8] ms it lasts, 0 = until ended
-- returns JSON as breaker_sync does, without granted and wait
load()
local before = it.mode == '' and it.state or shown_mode(it.mode)
local lasts = tonumber(ARGV[8])
it.mode, it.who, it.why = ARGV[5], ARGV[6], ARGV[7]
it.mode_until = (it.mode ~= '' and lasts > 0) and now + lasts or 0
close(ARGV[7], false)
if it.mode == '' then
    it.who, it.why = '', ''
    tell('closed', before, 'closed', ARGV[7], ARGV[6])
else
    tell('forced', before, shown_mode(it.mode), ARGV[7], ARGV[6])
end
save()
publish()
redis.call('DEL', probes)
return answer()
