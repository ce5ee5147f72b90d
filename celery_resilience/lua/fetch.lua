#!lua flags=allow-oom
-- Take messages off their lists and note them as held, in one step: kombu's own two steps lose what is between them.
-- KEYS[1] unacked of kombu: hash: delivery tag -> [message, exchange, routing key]; bounded by what is in work
-- KEYS[2] unacked index of kombu: sorted set: delivery tag -> time in seconds; bounded by what is in work
-- KEYS[3] hash of what is no message at all: name -> bytes as they came; each stays until its letter is stored
-- KEYS[4…] the lists of all queues at the first priority, then at the next, and so on
-- ARGV[1] how many to take at most
-- ARGV[2] a token, for the names of what has none
-- ARGV[3] 1 if queues of one priority take turns, 0 if the first is to be empty before the next
-- ARGV[4…] the names of the queues
-- returns 1 if there may be more, else 0; then for each message the position of its queue, its tag and itself, and for
--         what is no message the same with the position negative.
local limit, queues = tonumber(ARGV[1]), #ARGV - 3
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local answer, count = {1}, 0

local function text(value, otherwise)
    if type(value) == 'string' then return value end
    return otherwise
end

local function properties_of(packed)
    local is_read, message = pcall(cjson.decode, packed)
    if not is_read then -- half of a pair of surrogates, which Python writes and reads
        is_read, message = pcall(cjson.decode, (string.gsub(packed, '\\u[dD][89a-fA-F]%x%x', '?')))
    end
    if not is_read or type(message) ~= 'table' or not string.find(packed, '^%s*{') then return nil end
    return type(message.properties) == 'table' and message.properties or {}
end

local function hold(tag, packed, origin, queue)
    local exchange, routing_key = cjson.encode(text(origin.exchange, '')), cjson.encode(text(origin.routing_key, queue))
    redis.call('HSET', KEYS[1], tag, '[' .. packed .. ',' .. exchange .. ',' .. routing_key .. ']')
    redis.call('ZADD', KEYS[2], now, tag)
end

local function take(packed, position)
    count = count + 1
    local queue, properties = ARGV[3 + position], properties_of(packed)
    local tag = ARGV[2] .. ':' .. count .. ':' .. queue
    if properties == nil then
        redis.call('HSET', KEYS[3], tag, packed)
        position = -position
    else
        local given, origin = properties.delivery_tag, properties.delivery_info
        if type(given) == 'number' then given = string.format('%.0f', given) end
        if text(given, '') ~= '' then tag = given end
        hold(tag, packed, type(origin) == 'table' and origin or {}, queue)
    end
    answer[#answer + 1] = position
    answer[#answer + 1] = tag
    answer[#answer + 1] = packed
end

local function take_from(list, position, at_most)
    local found = false
    while count < at_most do
        local packed = redis.call('RPOP', list)
        if not packed then break end
        found = true
        take(packed, position)
    end
    return found
end

for first = 4, #KEYS, queues do
    local found = true
    while found and count < limit do
        found = false
        for position = 1, queues do
            local at_most = ARGV[3] == '1' and math.min(limit, count + 1) or limit
            found = take_from(KEYS[first + position - 1], position, at_most) or found
        end
    end
end
if count < limit then
    answer[1] = 0
    -- A look at the empty lists: the server tells a client that tracks its keys of the next push into any of them.
    redis.call('EXISTS', unpack(KEYS, 4))
end
return answer
