-- Requests of benches/peers/store_writes.py for wrk. Each thread uses one of the nodes.
-- Arguments: kind (keys, apart or metered), API keys, projects; the last two separated by commas. The threads of `apart` have
-- projects of their own. Variables: BENCH_HOSTS, separated by commas, and BENCH_PORT.

local threads = {}

local function split(text)
   local parts = {}
   for part in text:gmatch("[^,]+") do parts[#parts + 1] = part end
   return parts
end

function setup(thread)
   thread:set("number", #threads)
   thread:set("total", #split(os.getenv("BENCH_HOSTS")))
   threads[#threads + 1] = thread
   local hosts = split(os.getenv("BENCH_HOSTS"))
   thread.addr = wrk.lookup(hosts[(#threads - 1) % #hosts + 1], os.getenv("BENCH_PORT"))[1]
end

function init(args)
   kind, secrets, projects = args[1], split(args[2]), split(args[3])
   count, other = 0, 0
end

function request()
   count = count + 1
   local place = kind == "apart" and count * total + number or count + number * 7
   local index = place % #projects + 1
   local headers = { ["Authorization"] = "Bearer " .. secrets[place % #secrets + 1] }
   if kind == "metered" then
      return wrk.format("GET", "/v1/models/mock", headers)
   end
   headers["Content-Type"] = "application/json"
   local body = '{"name":"key ' .. number .. "-" .. count .. '","project_id":"' .. projects[index] .. '"}'
   return wrk.format("POST", "/v1/api-keys", headers, body)
end

function response(status)
   if status ~= 200 then other = other + 1 end
end

function done(summary, latency)
   local refused = 0
   for _, thread in ipairs(threads) do refused = refused + thread:get("other") end
   local errors = summary.errors
   io.write(string.format(
      '\nRESULT {"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "refused": %d, "lost": %d}\n',
      summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
      refused, errors.connect + errors.read + errors.write + errors.timeout))
end
