#!lua flags=allow-oom
-- Take messages off their lists and note them as held, in one step: kombu's own two steps lose what is between them.
-- KEYS[1] unacked of kombu: hash: delivery tag -> [message, exchange, routing key]; bounded by what is in work
-- KEYS[2] unacked index of kombu: sorted set: delivery tag -> time in seconds; bounded by what is in work
-- KEYS[3] list of what is no message at all, as it came, newest first; kept until somebody has looked at it
-- KEYS[4…] the lists of all queues at the first priority, then at the next, and so on
-- ARGV[1] how many to take at most
-- ARGV[2…] the names of the queues
-- returns 1 if there may be more, else 0; then for each message the position of its queue, its tag and itself.
--         Queues of one priority take turns.
local limit, queues = tonumber(ARGV[1]), #ARGV - 1
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local answer, count = {1}, 0

local function text(value, otherwise)
    if type(value) == 'string' then return value end
    return otherwise
end

local function tag_and_origin(packed)
    local _, message = pcall(cjson.decode, packed)
    local properties = type(message) == 'table' and message.properties
    if type(properties) ~= 'table' then return '' end
    local tag, origin = properties.delivery_tag, properties.delivery_info
    if type(tag) == 'number' then tag = string.format('%.0f', tag) end
    return text(tag, ''), type(origin) == 'table' and origin or {}
end

local function take(packed, position)
    count = count + 1
    local tag, origin = tag_and_origin(packed)
    if tag == '' then
        redis.call('LPUSH', KEYS[3], packed)
        return
    end
    local exchange = cjson.encode(text(origin.exchange, ''))
    local routing_key = cjson.encode(text(origin.routing_key, ARGV[1 + position]))
    redis.call('HSET', KEYS[1], tag, '[' .. packed .. ',' .. exchange .. ',' .. routing_key .. ']')
    redis.call('ZADD', KEYS[2], now, tag)
    answer[#answer + 1] = position
    answer[#answer + 1] = tag
    answer[#answer + 1] = packed
end

for first = 4, #KEYS, queues do
    local found = true
    while found and count < limit do
        found = false
        for position = 1, queues do
            local packed = count < limit and redis.call('RPOP', KEYS[first + position - 1])
            if packed then
                found = true
                take(packed, position)
            end
        end
    end
end
if count < limit then
    answer[1] = 0
    -- A look at the empty lists: the server tells a client that tracks its keys of the next push into any of them.
    redis.call('EXISTS', unpack(KEYS, 4))
end
return answer
