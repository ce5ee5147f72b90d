-- What the scripts of a breaker share: load all of it, change the table, save all of it. Mirrored by breaker/local.py.
-- KEYS[1] hash    hash: the breaker; TTL a day after its last use, none while an override without end holds
-- KEYS[2] probes  sorted set: token -> deadline of its lease in ms; TTL twice the lease
-- KEYS[3] events  stream of all breakers: one entry per transition; capped at about 10,000
-- KEYS[4] index   sorted set: breaker -> last use in ms; kept to the client's limit by breaker_forget
-- ARGV[1] ms since the epoch, only from tests that move the clock; '' = the TIME of Redis
-- ARGV[2] chance from 0 to 1   ARGV[3] name   ARGV[4] policy as JSON
local BUCKETS, DAY, MAX_EVENTS = 10, 86400000, 10000
local hash, probes, events, index = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local chance, name, policy = tonumber(ARGV[2]), ARGV[3], cjson.decode(ARGV[4])
local now = tonumber(ARGV[1])
if not now then
    local time = redis.call('TIME')
    now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local NUMBERS = {'generation', 'since', 'until', 'opens', 'successes', 'consecutive', 'ramp', 'mode_until'}
local TEXTS = {'state', 'mode', 'reason', 'who', 'why', 'outcomes', 'policy'}
local told = {}  -- transitions made by this run
local it = {}    -- the breaker
local buckets = {}

local function load()
    local names = {}
    for _, field in ipairs(NUMBERS) do names[#names + 1] = field end
    for _, field in ipairs(TEXTS) do names[#names + 1] = field end
    for slot = 0, BUCKETS - 1 do names[#names + 1] = 'b' .. slot end
    local row = redis.call('HMGET', hash, unpack(names))
    for i, field in ipairs(NUMBERS) do it[field] = tonumber(row[i] or '0') or 0 end
    for i, field in ipairs(TEXTS) do it[field] = row[#NUMBERS + i] or '' end
    for slot = 0, BUCKETS - 1 do
        local text = row[#NUMBERS + #TEXTS + slot + 1] or ''
        local epoch, calls, failures, slow = string.match(text, '^(%d+):(%d+):(%d+):(%d+)$')
        buckets[slot] = {tonumber(epoch or '-1'), tonumber(calls or '0'), tonumber(failures or '0'), tonumber(slow or '0')}
    end
    it.is_new = it.state == ''
    if it.is_new then  -- the time as first generation: a breaker lost and made anew never meets an old number
        it.state, it.generation, it.since = 'closed', now, now
    end
end

local function save()
    local row = {}
    for _, field in ipairs(NUMBERS) do row[#row + 1] = field; row[#row + 1] = string.format('%.0f', it[field]) end
    for _, field in ipairs(TEXTS) do row[#row + 1] = field; row[#row + 1] = it[field] end
    for slot = 0, BUCKETS - 1 do
        row[#row + 1] = 'b' .. slot
        row[#row + 1] = string.format('%.0f:%d:%d:%d', math.max(0, buckets[slot][1]), unpack(buckets[slot], 2))
    end
    redis.call('HSET', hash, unpack(row))  -- the first write: a full Redis refuses here, with nothing changed
    redis.call('ZADD', index, now, name)
    if it.mode ~= '' and it.mode_until == 0 then
        redis.call('PERSIST', hash)
    else
        redis.call('PEXPIRE', hash, string.format('%.0f', DAY + math.max(0, it['until'] - now, it.mode_until - now)))
    end
end

local function publish()
    for _, event in ipairs(told) do
        redis.call('XADD', events, 'MAXLEN', '~', MAX_EVENTS, '*', 'name', name, 'event', event.event, 'from', event.from,
            'to', event.to, 'generation', string.format('%.0f', event.generation), 'at', string.format('%.0f', now),
            'reason', event.reason, 'who', event.who)
    end
end

local function tell(event, from, to, reason, who)
    told[#told + 1] = {event = event, from = from, to = to, reason = reason, who = who or '', generation = it.generation}
end

local function clear_window()
    for slot = 0, BUCKETS - 1 do buckets[slot] = {-1, 0, 0, 0} end
    it.outcomes, it.consecutive, it.successes = '', 0, 0
end

local function enter(state, reason)
    it.state, it.reason, it.since, it.generation = state, reason, now, it.generation + 1
    it['until'], it.ramp = 0, 0
    clear_window()
    it.drop_probes = true
end

local function open(reason, hint)
    local from = it.state
    it.opens = math.min(it.opens + 1, 30)
    local growth, ms = 2 ^ (it.opens - 1), hint
    if hint >= 0 then
        ms = math.max(hint, 100 * growth)
    else
        ms = policy.open_seconds * 1000 * growth * (0.9 + 0.2 * chance)
    end
    local opens = it.opens
    enter('open', reason)
    it.opens, it['until'] = opens, now + math.floor(math.min(ms, policy.open_cap_seconds * 1000))
    tell('opened', from, 'open', reason)
end

local function half_open()
    enter('half-open', 'the open time is over')
    tell('half-opened', 'open', 'half-open', it.reason)
end

local function close(reason, with_ramp)
    local from = it.state
    enter('closed', reason)
    it.opens = 0
    if with_ramp then it.ramp = now end
    return from
end

local function shown_mode(mode)
    if mode == 'disabled' then return 'disabled' end
    return 'forced ' .. mode
end

local function release_if_over()
    if it.mode ~= '' and it.mode_until > 0 and now >= it.mode_until then
        local mode, who = it.mode, it.who
        it.mode, it.mode_until, it.who, it.why = '', 0, '', ''
        close('the override is over', mode == 'open')
        tell('released', shown_mode(mode), 'closed', it.reason, who)
    end
end

local function totals()
    local calls, failures, slow = 0, 0, 0
    if policy.window_calls then
        calls = #it.outcomes
        local _, f = string.gsub(it.outcomes, '[23]', '')
        local _, s = string.gsub(it.outcomes, '[13]', '')
        return calls, f, s
    end
    local epoch = math.floor(now / (policy.window_seconds * 1000 / BUCKETS))
    for slot = 0, BUCKETS - 1 do
        local bucket = buckets[slot]
        if bucket[1] > epoch - BUCKETS and bucket[1] <= epoch then
            calls, failures, slow = calls + bucket[2], failures + bucket[3], slow + bucket[4]
        end
    end
    return calls, failures, slow
end

local function add(at, ok, slow_ok, failed, slow_failed)
    if ok + slow_ok + failed + slow_failed == 0 then return end
    if policy.window_calls then
        local last = policy.window_calls
        local function run(letter, count) return string.rep(letter, math.min(count, last)) end
        local all = it.outcomes .. run('0', ok) .. run('1', slow_ok) .. run('2', failed) .. run('3', slow_failed)
        it.outcomes = string.sub(all, -last)
    else
        local width = policy.window_seconds * 1000 / BUCKETS
        local epoch = math.floor(at / width)
        if epoch > math.floor(now / width) - BUCKETS then  -- else it is before the window: only the row is kept
            local slot = epoch % BUCKETS
            if buckets[slot][1] ~= epoch then buckets[slot] = {epoch, 0, 0, 0} end
            local bucket = buckets[slot]
            bucket[2] = bucket[2] + ok + slow_ok + failed + slow_failed
            bucket[3] = bucket[3] + failed + slow_failed
            bucket[4] = bucket[4] + slow_ok + slow_failed
        end
    end
    if ok + slow_ok > 0 then it.consecutive = 0 end
    it.consecutive = it.consecutive + failed + slow_failed
end

local function trip_reason()
    local calls, failures, slow = totals()
    if policy.consecutive_failures and it.consecutive >= policy.consecutive_failures then
        return it.consecutive .. ' failures in a row'
    end
    if calls >= policy.minimum_calls then
        if policy.failure_rate and failures / calls >= policy.failure_rate then
            return failures .. ' of ' .. calls .. ' calls failed'
        end
        if policy.slow_call_seconds and slow / calls >= policy.slow_call_rate then
            return slow .. ' of ' .. calls .. ' calls were slow'
        end
    end
    return nil
end

local function answer(more)
    local calls, failures, slow = totals()
    local reply = {
        state = it.state, generation = it.generation, now = now, ['until'] = it['until'], calls = calls,
        failures = failures, slow = slow, consecutive = it.consecutive, mode = it.mode, mode_until = it.mode_until,
        ramp = it.ramp, reason = it.reason,
    }
    if #told > 0 then reply.told = told end
    for field, value in pairs(more or {}) do reply[field] = value end
    return cjson.encode(reply)
end
