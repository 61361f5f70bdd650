-- slurmbridge: sbatch --gres=gpu:shared becomes a whole GPU's shares, and the job
-- waits for the bridge while the bridge is there.
--
-- Install it beside slurm.conf as job_submit.lua with JobSubmitPlugins=lua, or
-- call it from a script of your own:
--   local slurmbridge = dofile("/usr/share/slurmbridge/job_submit.lua")
--   function slurm_job_submit(job, parts, uid)
--      local rc = slurmbridge.submit(job, parts, uid)
--      if rc ~= slurm.SUCCESS then return rc end
--      ...
--
-- It asks nobody: it reads one small file that the bridge keeps, and only while
-- that file is fresh does it add the gate. Whatever goes wrong in here, the job
-- passes.

local CONF = {
   gate = "/run/slurmbridge/gate",   -- which job is the gate, until when
   wake = "/run/slurmbridge/wake",   -- a line here makes the bridge look
   gres = "mps",                     -- what GPUs are shared by, where no gate file says it: mps or shard
}

local M = {}

-- The gate file as a table, or nil where it is missing, unreadable or stale.
-- gres and units are there even when it is stale.
local function gate()
   local f = io.open(CONF.gate, "r")
   if not f then return nil, {} end
   local text = f:read(4096) or ""
   f:close()
   local g = {}
   for k, v in text:gmatch("(%w+)=(%w+)") do g[k] = v end
   local fresh = g.job and g.job:match("^%d+$") and tonumber(g.expires) and os.time() < tonumber(g.expires)
   return fresh and g or nil, g
end

local function wake(line)
   local f = io.open(CONF.wake, "a")
   if f then
      f:write(line, "\n")
      f:close()
   end
end

-- One request of a list, taken apart: name, type, count. "gres:gpu:shared:2",
-- "gres/gpu:shared=2" and "gpu:shared" are all understood.
local function item(s)
   s = s:gsub("^gres[:/]", "")
   local parts = {}
   for p in s:gmatch("[^:=]+") do parts[#parts + 1] = p end
   local name, kind, count = parts[1], parts[2], parts[3]
   if kind and kind:match("^%d+[kKmM]?$") and not count then kind, count = nil, kind end
   return name, kind, count or "1"
end

-- Whether a request says gpu:shared, and what else it asks for.
local function examine(list)
   if type(list) ~= "string" or list == "" then return false end
   local shared, other, count = false, nil, "1"
   for s in list:gmatch("[^,]+") do
      local name, kind, n = item(s)
      if name == "gpu" and kind == "shared" then
         if shared then count = "2" else shared, count = true, n end
      elseif name == "gpu" or name == "mps" or name == "shard" then
         other = s
      end
   end
   return shared, other, count
end

-- What is wrong with a request for a shared GPU, or nil.
local function refuse(job)
   local said = "slurmbridge: "
   for _, field in ipairs({ "tres_per_socket", "tres_per_task" }) do
      if examine(job[field]) then
         return said .. "a shared GPU is asked for per job: sbatch --gres=gpu:shared"
      end
   end
   local node, other1, n1 = examine(job.tres_per_node)
   local whole, other2, n2 = examine(job.tres_per_job)
   if node and n1 ~= "1" or whole and n2 ~= "1" then
      return said .. "a job shares one GPU: --gres=gpu:shared, without a number"
   end
   if node and whole then
      return said .. "say --gres=gpu:shared or --gpus=shared, not both"
   end
   local other = other1 or other2
   if other then
      other = other:gsub("[^%w:/=._-]", "?")
      return said .. "gpu:shared can't be had together with " .. other .. "; ask for one of them"
   end
   local min, max = job.min_nodes, job.max_nodes
   if type(min) == "number" and min > 1 and min < 0xfffffffd then
      return said .. "a shared GPU is on one node; this job asks for " .. min .. " nodes"
   end
   if type(max) == "number" and max > 1 and max < 0xfffffffd and min == max then
      return said .. "a shared GPU is on one node; this job asks for " .. max .. " nodes"
   end
   return nil
end

-- Replaces gpu:shared in a list by the shares, in the list's own spelling; what
-- else it holds (licences of gres that are no GPU) stays.
local function rewrite(list, shares)
   local out = {}
   for s in list:gmatch("[^,]+") do
      local name, kind = item(s)
      if name == "gpu" and kind == "shared" then
         local prefix = s:match("^gres[:/]") or ""
         out[#out + 1] = prefix .. shares
      else
         out[#out + 1] = s
      end
   end
   return table.concat(out, ",")
end

-- The prefix this release writes before a gres: "gres:" to 23.02, "gres/" later.
local function prefix(list)
   return list:match("^gres[:/]") or ""
end

local function submit(job, gated)
   local node = examine(job.tres_per_node)
   local whole = examine(job.tres_per_job)
   local odd = examine(job.tres_per_socket) or examine(job.tres_per_task)
   if not (node or whole or odd) then return nil end
   local why = refuse(job)
   if why then return why end
   local g, known = gate()
   local kind = known.gres or CONF.gres
   local shares = (kind == "shard" and "shard" or "mps") .. ":" .. (tonumber(known.units) and known.units or "100")
   if node then
      job.tres_per_node = rewrite(job.tres_per_node, shares)
   else
      local request = prefix(job.tres_per_job) .. shares
      if type(job.tres_per_node) == "string" and job.tres_per_node ~= "" then
         request = job.tres_per_node .. "," .. request
      end
      job.tres_per_job = ""
      job.tres_per_node = request
   end
   if g and gated then
      local own = job.dependency
      if type(own) ~= "string" or own == "" then
         job.dependency = "after:" .. g.job
      elseif not own:find("?", 1, true) then
         -- A list of alternatives can't be added to: such a job runs alone.
         job.dependency = own .. ",after:" .. g.job
      end
   end
   return nil, true
end

local function guarded(job, gated)
   local ok, why, ours = pcall(submit, job, gated)
   if not ok then
      slurm.log_error("slurmbridge: job_submit: %s", tostring(why))
      return slurm.SUCCESS
   end
   if why then
      slurm.log_user(why)
      return slurm.ERROR
   end
   if ours then pcall(wake, "submit") end
   return slurm.SUCCESS
end

-- Called by slurmctld for each new job. Returns slurm.SUCCESS, or slurm.ERROR
-- with a sentence for the user where the request makes no sense.
function M.submit(job)
   return guarded(job, true)
end

-- Called for each change of a job: one to gpu:shared gets a whole GPU's shares.
-- It is not gated: a change that names no dependency must leave the job's own.
function M.modify(job)
   return guarded(job, false)
end

function slurm_job_submit(job) -- luacheck: globals slurm_job_submit
   return M.submit(job)
end

function slurm_job_modify(job) -- luacheck: globals slurm_job_modify
   return M.modify(job)
end

return M
