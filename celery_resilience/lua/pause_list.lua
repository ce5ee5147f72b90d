-- List the pauses, after dropping those whose time is over.
-- KEYS[1] all   hash: 'queue:NAME' or 'task:NAME' -> JSON {who, why, at, until}; no TTL, bounded by pause_set
-- returns {now in ms, field, JSON, field, JSON, …}
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local answer = {now}
local known = redis.call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
    local is_json, pause = pcall(cjson.decode, known[i + 1])
    local ends = is_json and type(pause) == 'table' and tonumber(pause['until'])
    if ends and ends * 1000 <= now then
        redis.call('HDEL', KEYS[1], known[i])
    else
        answer[#answer + 1] = known[i]
        answer[#answer + 1] = known[i + 1]
    end
end
return answer
