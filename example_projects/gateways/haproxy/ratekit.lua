-- Asks ratekit whether a request may pass. Sets txn.ratekit: ok, limited, closed, unavailable, or what else x-ratelimit-status says.
local KEY = "RATEKIT_API_KEY"
local URL = "http://127.0.0.1:8080/v1/authorize"

-- Headers of a response have a list of values each, from 0 on.
local function first(response, name)
  local values = response.headers and response.headers[name]
  return values and values[0]
end

core.register_action("ratekit", { "http-req" }, function(txn, resource)
  local subject = txn:get_var("txn.subject")
  local response = core.httpclient():get({
    url = URL .. "?resource=" .. resource,
    headers = { ["x-api-key"] = { KEY }, ["x-ratekit-subject"] = { subject or "" } },
    timeout = 50,
  })
  txn:set_var("txn.ratekit", response and first(response, "x-ratelimit-status") or "unavailable")
  for name, header in pairs({ limit = "x-ratelimit-limit", remaining = "x-ratelimit-remaining", retry_after = "retry-after" }) do
    local value = response and first(response, header)
    if value then txn:set_var("txn." .. name, value) end
  end
end, 1)
