-- slurmbridge: `sbatch --gres=gpu:shared` becomes a request for a whole GPU's
-- shares, and the job waits for the bridge while the bridge is there. So does a
-- part of a GPU's shares that a user asks for by hand (mps:30): Slurm would start
-- such a job next to whomever it finds there, checked by nobody.
--
-- Install it beside slurm.conf as job_submit.lua with JobSubmitPlugins=lua, or
-- call it from a job_submit.lua of your own:
--
--    local there, slurmbridge = pcall(dofile, "/usr/share/slurmbridge/job_submit.lua")
--    function slurm_job_submit(job, parts, uid)
--       ...
--       return there and slurmbridge.submit(job, parts, uid) or slurm.SUCCESS
--    end
--    function slurm_job_modify(job, rec, parts, uid)
--       ...the same with slurmbridge.modify(job, rec, parts, uid)
--    end
--
-- With pcall slurmctld starts on a host without the package, too.
--
-- It asks nobody: it reads one small file that the bridge keeps, and only while
-- that file is fresh does it add the gate (the job that waiting jobs depend on).
-- Without the bridge a shared job is an ordinary job with a GPU to itself.
-- Whatever goes wrong in here, the job passes as it came. Jobs that don't say
-- gpu:shared, or a part of a GPU, aren't touched, unless the site's rules adopt them: then
-- the gate is added, and the request stays. No comment is set to mark a job:
-- sites and users have their own in there, and the bridge knows its jobs by the gate.
--
-- Written for the Lua that Slurm is built with, 5.1 to 5.4.

-- luacheck: globals slurm slurm_job_submit slurm_job_modify

local CONF = {
   gate = "/run/slurmbridge/gate", -- the bridge's file; see read_gate
   wake = "/run/slurmbridge/wake", -- a line here makes the bridge look
   gres = "mps",                   -- how GPUs are shared where no gate file says it: mps or shard
   units = "100",                  -- shares of a whole GPU
   partition = "slurmbridge",      -- the gate's own, where no gate file names it
}

local M = { conf = CONF }

local WAKE_LIMIT = 1048576 -- bytes; nobody empties the file where no bridge runs
local FILE_LIMIT = 65536 -- bytes of the gate file that are read
local SCRIPT_LIMIT = 65536 -- bytes of a script that are read
local LONG = 8192 -- bytes: longer fields make a job one that the bridge leaves alone

-- From here on up Slurm's numbers mean "not set" (NO_VAL16, NO_VAL).
local NO_VAL16, NO_VAL = 0xfffe, 0xfffffffe

-- A field's number, nil where it is not set.
local function number(v, none)
   if type(v) == "number" and v < none - 1 then return v end
   return nil
end

local function text(v)
   return type(v) == "string" and v or ""
end

-- The gate file's values, {} where there is none; and the gate's job, nil unless
-- the file is fresh. user, only, leave, shares, model and type may stand there often: sets. So may cpus and
-- mem, what a job gets by default for a GPU, and size, the CPUs of a job that fits on any node that
-- shares GPUs: numbers by partition, "*" for the others. adopt holds the site's rules in their order, out
-- those who have opted out.
local function read_gate()
   local g = {
      user = {}, only = {}, leave = {}, shares = {}, cpus = {}, mem = {}, size = {}, out = {}, adopt = {}, model = {},
      type = {},
   }
   local f = io.open(CONF.gate, "r")
   if not f then return g, nil end
   local s = f:read(FILE_LIMIT) or ""
   f:close()
   for k, v in s:gmatch("(%w+)=([^\n]+)\n") do
      if k == "adopt" then
         g.adopt[#g.adopt + 1] = v
      elseif k == "cpus" or k == "mem" or k == "size" then
         local name, n = v:match("^([^:]+):(%d+)$")
         if name then g[k][name] = number(tonumber(n), NO_VAL) end
      elseif type(g[k]) == "table" then
         g[k][v] = true
      else
         g[k] = v
      end
   end
   local id, expires = text(g.job):match("^[1-9]%d*$"), text(g.expires):match("^%d+$")
   if id and expires and os.time() < tonumber(expires) then return g, id end
   return g, nil
end

local function wake()
   local f = io.open(CONF.wake, "a")
   if not f then return end
   if (f:seek("end") or 0) < WAKE_LIMIT then f:write("submit\n") end
   f:close()
end

-- Takes the gate's partition out of a list of several. job_submit/all_partitions, before this script
-- in JobSubmitPlugins, gives a job that names no partition all of them, hidden ones too, and with the
-- gate's Slurm refuses the job or never starts it.
local function leave_gate(job)
   local list, out = text(job.partition), {}
   if not list:find(",", 1, true) then return end
   local gate = read_gate().partition or CONF.partition
   for name in list:gmatch("[^,]+") do
      if name ~= gate then out[#out + 1] = name end
   end
   local kept = table.concat(out, ",")
   if kept ~= "" and #kept < #list then job.partition = kept end
end

-- One request of a list, taken apart. "gres:gpu:shared:2" (releases to 23.02),
-- "gres/gpu:shared:2" (later) and "gpu:shared=2" are the same.
local function parse(request)
   local prefix, rest = request:match("^(gres[:/])(.*)$")
   if not prefix then prefix, rest = "", request end
   local name, kind, count = rest:match("^([^:=]*)[:=]?([^:=]*)[:=]?(.*)$")
   return {
      prefix = prefix,
      name = name,
      kind = kind,
      shared = name == "gpu" and kind == "shared",
      gpu = name == "gpu" or name == "mps" or name == "shard",
      count = count == "" and "1" or count,
   }
end

-- Whether a request is for a part of a GPU's shares; then the type of GPU that it
-- names, "" = none, and the shares of as many whole GPUs.
local function part(p, sharing)
   if p.name ~= sharing.gres then return false end
   local untyped = p.kind == "" or p.count == "1" and p.kind:match("^%d+$") ~= nil
   local kind, count = untyped and "" or p.kind, untyped and p.kind or p.count
   local n, units = tonumber(count:match("^%d+$") or "1"), tonumber(sharing.units)
   if n % units == 0 then return false end
   return true, kind, string.format("%.0f", math.ceil(n / units) * units)
end

-- What a field asks for: how often gpu:shared and with what count, another GPU,
-- and the field with the shares in gpu:shared's place. With police a part of a GPU
-- is gpu:shared, too; of a GPU of a type, or of more than one, it becomes whole ones.
local function examine(list, sharing, police)
   local r = { n = 0, named = 0, count = nil, other = nil, prefix = "", list = "", part = nil, rounded = false }
   local out = {}
   for request in text(list):gmatch("[^,]+") do
      local p = parse(request)
      local is, kind, whole = false, "", ""
      if police then is, kind, whole = part(p, sharing) end
      if is then r.part = request:sub(#p.prefix + 1) end
      if p.shared or is and kind == "" and whole == sharing.units then
         r.n, r.count, r.prefix = r.n + 1, is and "1" or p.count, p.prefix
         r.named = r.named + (is and 0 or 1)
         request = p.prefix .. sharing.whole
      elseif is then
         r.rounded = true
         request = p.prefix .. p.name .. ":" .. (kind ~= "" and kind .. ":" or "") .. whole
      elseif p.gpu then
         r.other = request
      end
      out[#out + 1] = request
   end
   r.list = table.concat(out, ",")
   return r
end

-- The partitions that a job asks for, the default one where it names none.
local function partitions(job, rec, parts)
   local own = text(job.partition)
   if own == "" and rec then own = text(rec.partition) end
   if own ~= "" then return own end
   for name, p in pairs(type(parts) == "table" and parts or {}) do
      if p.flag_default == 1 then return name end
   end
   return ""
end

-- Whether Slurm gives a job whole nodes, and all GPUs of each: for --exclusive, or since each of its partitions is
-- OverSubscribe=EXCLUSIVE. Of shares it hands out no more than one GPU's, so that on a node with several GPUs such a
-- job of shares never starts (seen on 22.05.8 and 26.05.5). kept: where a job lists partitions of both kinds, those
-- in which it may share, else nil: once Slurm has looked for a whole node, the job starts in none of them.
local function whole_nodes(job, rec, parts)
   if number(job.shared, NO_VAL16) == 0 then return true, nil end
   local kept, whole = {}, false
   for name in partitions(job, rec, parts):gmatch("[^,]+") do
      local p = type(parts) == "table" and parts[name]
      if p and p.max_share == 0 then whole = true else kept[#kept + 1] = name end
   end
   if whole and #kept > 0 then return false, table.concat(kept, ",") end
   return whole, nil
end

-- Whether a change moves a job that holds shares to other partitions, or makes it --exclusive.
local function moves_shares(job, rec)
   if not rec or text(job.tres_per_node) ~= "" then return false end
   if text(job.partition) == "" and number(job.shared, NO_VAL16) ~= 0 then return false end
   for request in text(rec.tres_per_node):gmatch("[^,]+") do
      local name = parse(request).name
      if name == "mps" or name == "shard" then return true end
   end
   return false
end

-- Whether a part of a GPU that this job asks for becomes gpu:shared. It doesn't
-- where the bridge isn't active (no gate file), for root and the bridge itself, for
-- users that the site names (hand_shares), and in partitions that it leaves alone.
local function policed(g, job, rec, parts, uid)
   local bridge = tonumber(text(g.uid):match("^%d+$") or "")
   if not bridge or type(uid) ~= "number" or uid == 0 or uid == bridge then return false end
   local owner = number(rec and rec.user_id or job.user_id, NO_VAL) or uid
   if g.user[string.format("%.0f", owner)] then return false end
   local all = partitions(job, rec, parts)
   if all == "" then return true end
   for name in all:gmatch("[^,]+") do
      if not (g.leave[name] or next(g.only) and not g.only[name]) then return true end
   end
   return false
end

-- Whether it is root or the bridge that submits or changes a job: they may do what they like.
local function is_bridge(g, uid)
   return uid == 0 or string.format("%.0f", tonumber(uid) or -1) == g.uid
end

-- The partition of those that the job asks for in which only shares are handed out
-- (sharers_only), nil where there is none.
local function shares_only(g, job, rec, parts, uid)
   -- A change of anything else is none of this script's business.
   if rec and text(job.tres_per_node) .. text(job.tres_per_job) .. text(job.partition) == "" then return nil end
   if not next(g.shares) or is_bridge(g, uid) then return nil end
   for name in partitions(job, rec, parts):gmatch("[^,]+") do
      if g.shares[name] then return name end
   end
   return nil
end

-- How many GPUs a field asks for, and the field with all shares of a GPU in place of one, of its type where GPUs of
-- several types have shares. typed: the field names such a type.
local function whole_gpus(list, sharing, types)
   local out, n, typed = {}, 0, false
   for request in text(list):gmatch("[^,]+") do
      local p = parse(request)
      if p.name == "gpu" then
         n = n + (tonumber(p.kind:match("^%d+$") or p.count:match("^%d+$")) or 2)
         local kind = types[p.kind] and p.kind .. ":" or ""
         typed = typed or kind ~= ""
         request = p.prefix .. sharing.gres .. ":" .. kind .. sharing.units
      end
      out[#out + 1] = request
   end
   return n, table.concat(out, ","), typed
end

-- More nodes than one, if the job asks for them.
local function nodes(job)
   local min = number(job.min_nodes, NO_VAL)
   if min and min > 1 then return min end
   local tasks, each = number(job.num_tasks, NO_VAL), number(job.ntasks_per_node, NO_VAL16)
   if tasks and each and each > 0 and tasks > each then return math.ceil(tasks / each) end
   return nil
end

-- Options of srun's that have their value in the next word; those of one letter are A to Z but these.
local WITH_VALUE = {}
for word in ([[account acctg-freq bb chdir cluster-constraint comment constraint core-spec cores-per-socket cpu-bind
   cpu-freq cpus-per-gpu cpus-per-task deadline dependency distribution epilog error exclude export extra-node-info
   gpu-bind gpu-freq gres-flags hint input jobid job-name licenses mail-type mem mem-bind mem-per-cpu mem-per-gpu
   mincpus mpi network nice nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node
   ntasks-per-socket open-mode output partition power priority profile prolog qos relative reservation signal
   slurmd-debug sockets-per-node switches task-epilog task-prolog thread-spec threads-per-core time time-min tmp
   tres-bind wait wckey]]):gmatch("%S+") do
   WITH_VALUE["--" .. word] = true
end
local FLAGS = "[EHIKOQXZbhklsuv]"

-- How an option of srun's, with its value, asks for a GPU; nil = it doesn't.
local function wants_gpu(option, value)
   if option:match("^%-G") then
      if option ~= "-G" then value = option:sub(3) end
      option = "-G"
   elseif option == "--gres" or option == "--tres-per-task" then
      if not value:find("gpu", 1, true) then return nil end
   elseif not (option == "--gpus" or option:match("^%-%-gpus%-per%-")) then
      return nil
   end
   if value:match("^0+$") or value:match("[:=]0+$") then return nil end
   return (option .. "=" .. value):gsub("[^%w/:=._-]", "?"):sub(1, 60)
end

local NO_STEP_GPU = " finds no GPU of its own in a job that shares one: leave that option out, and srun's tasks have "
   .. "the job's GPU"

-- What of the words after srun asks for a GPU. sure: nothing that might be the program stands before it.
local function srun_gpu(words)
   local sure, i = true, 1
   while i <= #words do
      local option, value = words[i]:match("^(%-%-[%w-]+)=(.*)$")
      option = option or words[i]
      if not option:match("^%-") or option == "--" then
         return nil
      end
      local apart = value == nil
      value = value or words[i + 1] or ""
      local wants = wants_gpu(option, value)
      if wants then return wants, sure end
      if apart and (WITH_VALUE[option] or option:match("^%-%a$") and not option:match("^%-" .. FLAGS .. "$")) then
         i = i + 1
      elseif apart and option:match("^%-%-") and words[i + 1] and not words[i + 1]:match("^%-") then
         i, sure = i + 1, false -- a flag, and then the program; or an option that isn't known here, and its value
      end
      i = i + 1
   end
   return nil
end

local OPENS = { -- words after which what follows may never run
   ["if"] = true, ["for"] = true, ["while"] = true, ["until"] = true, case = true, select = true, exit = true,
}

-- How a script's srun asks for a GPU of its own (srun --gres=gpu:1): it finds none in a job that holds shares. nil =
-- it doesn't. sure: that srun runs in any case, as far as its line and the words that begin other lines tell.
local function step_gpu(script)
   script = script:sub(1, SCRIPT_LIMIT)
   if not script:find("srun", 1, true) then return nil end
   local found, depth, till = nil, 0, nil
   for line in script:gsub("\\\n", " "):gmatch("[^\n]+") do
      line = #line > LONG and "" or line:gsub("^%s+", "")
      local word = line:match("^%a+") or ""
      if till then
         if line:sub(1, #till) == till and not line:find("%S", #till + 1) then till = nil end
      elseif line:find("^#") or word == "echo" or word == "printf" then
         word = ""
      elseif word == "fi" or word == "done" or word == "esac" or line:find("^}") then
         depth = depth - 1
      end
      for command in (word == "" and line:find("^#") and "" or line):gmatch("[^;|&]+") do
         local before, rest = (" " .. command):match("^(.-[^%w_.-])srun%s+(.*)$")
         if before and not before:find("#", 1, true) and not before:find("^%s*echo") then
            local words = {}
            for w in rest:gmatch("%S+") do words[#words + 1] = w:gsub("[\"'`()]", "") end
            local wants, sure = srun_gpu(words)
            before = before:gsub("[%w_]+=[^%s$(`]*%s", ""):gsub("^%s*exec%s", ""):gsub("^%s*time%s", "")
            local alone = not (till or depth > 0 or before:find("[^%s/]%s") or before:find("[^%s%w_./]"))
            if wants and sure and alone and line:sub(1, #command) == command then return wants, true end
            found = found or wants
         end
      end
      local closed = line:find("[%s;]fi%s*$") or line:find("[%s;]done") or line:find("[%s;]esac%s*$")
      if not closed and (OPENS[word] or line:find("{%s*$")) then depth = depth + 1 end
      till = till or line:match("<<%-?%s*[\"'\\]?([%w_]+)")
   end
   return found, false
end

-- Why a job that shares a GPU is refused for what its script's srun asks for, nil = it isn't; and what its owner is
-- told where the script may never come to that srun.
local function step_trouble(job)
   local step, sure = step_gpu(text(job.script))
   if sure then return "the script's srun " .. step .. NO_STEP_GPU, nil end
   return nil, step and "where the script comes to srun " .. step .. ", that" .. NO_STEP_GPU
end

-- What Slurm counts by GPU needs a GPU of the job's own.
local PER_GPU = {
   cpus_per_tres = "--cpus-per-gpu",
   mem_per_tres = "--mem-per-gpu",
   tres_freq = "--gpu-freq",
}

-- Why a job that shares a GPU can't have an option that counts by GPU, nil = it has none.
local function per_gpu(job)
   local option = (number(job.ntasks_per_tres, NO_VAL16) or 0) > 0 and "--ntasks-per-gpu" or nil
   for field, name in pairs(PER_GPU) do
      if text(job[field]) ~= "" then option = name end
   end
   return option and option .. " can't be had with a shared GPU: ask for what the job needs, by --ntasks, "
      .. "--cpus-per-task and --mem"
end

-- The sentence for a request that makes no sense, or nil.
local function refuse(job, node, whole, odd)
   if odd.n > 0 then
      return "a shared GPU is asked for per job: --gres=gpu:shared"
   end
   if node.n + whole.n > 1 or (node.count or whole.count) ~= "1" then
      return "a job shares one GPU: --gres=gpu:shared, without a number"
   end
   local other = node.other or whole.other or odd.other
   if other then
      return "gpu:shared can't be had together with " .. other:gsub("[^%w/:=._-]", "?") .. ": ask for one of them"
   end
   local n = nodes(job)
   if n then
      return string.format("a shared GPU is on one node, and this job asks for %d nodes", n)
   end
   local why = per_gpu(job)
   if why then return why end
   -- What srun asks for it asks again when it starts its tasks, and finds no such
   -- thing in the job. Only from 23.02 on does its --gres follow the job's.
   if job.script == nil and whole.n > 0 then
      return "salloc and srun ask for a shared GPU by --gres=gpu:shared"
   end
   if job.script == nil and node.prefix == "gres:" and (number(job.argc, NO_VAL) or 0) > 0 then
      return "srun can't ask for a shared GPU by itself here: put the srun, without its --gres, "
         .. "into a script and submit that by sbatch --gres=gpu:shared"
   end
   return nil
end

-- The dependency of a job that waits for the gate, nil to leave it as it is: a
-- list of alternatives can't be added to, a part of a heterogeneous job starts when
-- the whole does, and what is endless isn't read.
local function gated(job, gate)
   -- Slurm refuses every change of a cron job: one behind the gate would stay there.
   if not gate or job.cron_job or number(job.het_job_offset, NO_VAL) then return nil end
   local long = { "dependency", "exc_nodes", "req_nodes", "features", "comment", "reservation", "partition" }
   for _, field in ipairs(long) do
      if #text(job[field]) > LONG then return nil end -- the bridge doesn't read so much
   end
   local own = text(job.dependency)
   if own == "" then return "after:" .. gate end
   if own:find("?", 1, true) then return nil end
   return own .. ",after:" .. gate
end

-- Sets the cores and the memory, MiB, that the job gets for its GPU by default, but for
-- what its owner asks for: Slurm gives them to jobs of whole GPUs alone. Slurm takes more
-- cores than tasks for a job of one task; for others they are divided among the tasks.
-- Returns a note of what a job of one task has by default: the bridge may divide it
-- among the members of a group.
local function set_defaults(set, g, job, rec, parts)
   local name = partitions(job, rec, parts):match("^[^,]+") or ""
   local cpus, mem = g.cpus[name] or g.cpus["*"], g.mem[name] or g.mem["*"]
   local tasks = number(job.num_tasks, NO_VAL) or 1
   local each = cpus and math.floor(cpus / math.max(tasks, 1)) or 1
   local note = ""
   if each > 1 and not number(job.cpus_per_task, NO_VAL16) then
      local own = number(job.min_cpus, NO_VAL) or 1
      if tasks > 1 then set("cpus_per_task", each) end
      set("min_cpus", math.max(each * tasks, own))
      if own <= 1 then note = string.format(" cpus=%.0f", each) end
   end
   if mem and not (job.min_mem_per_node or job.min_mem_per_cpu) then
      set("min_mem_per_node", mem)
      note = note .. string.format(" mem=%.0f", mem)
   end
   if note == "" or tasks > 1 then return "" end
   return "(default" .. note .. ")"
end

-- What becomes of a request for whole GPUs in a partition where only shares are handed
-- out: all shares of one, and the cores and memory that a GPU brings; or nil and why it is
-- refused. Where one job holds a part of a GPU, Slurm before 23.11.5 may give the GPU to
-- another. said is what the job's owner is told.
local function only_shares(g, job, rec, parts, partition, sharing)
   local function field(name) return job[name] or rec and rec[name] end
   local node, node_list, node_typed = whole_gpus(field("tres_per_node"), sharing, g.type)
   local whole, whole_list, typed = whole_gpus(field("tres_per_job"), sharing, g.type)
   local odd = whole_gpus(text(field("tres_per_socket")) .. "," .. text(field("tres_per_task")), sharing, g.type)
   if node + whole + odd == 0 then return {} end
   local here = "in partition " .. partition .. " GPUs are shared, and "
   if node + whole ~= 1 or odd > 0 or nodes(job) or job.script == nil and rec == nil then
      return nil, here .. "a job has one or a part of one: sbatch --gres=gpu:1 or --gres=gpu:shared, on one node"
   end
   local why, said = per_gpu(job), nil
   if not rec and not why then why, said = step_trouble(job) end
   if why then return nil, here .. why end
   local changes = {}
   local function set(name, value) changes[#changes + 1] = { name, value } end
   if node == 1 then
      set("tres_per_node", node_list)
   else
      local list = text(field("tres_per_node"))
      set("tres_per_node", (list ~= "" and list .. "," or "") .. whole_list)
      set("tres_per_job", "")
   end
   if not rec then set_defaults(set, g, job, rec, parts) end
   if node_typed or typed then changes.step = sharing.gres .. ":" .. sharing.units end
   return changes, nil, said
end

-- Keeps a job that fits on one node there: on a second one, which Slurm gives it where the
-- first has too few free cores, or for --nodes=1-2, it would have its shares of a GPU as
-- well, next to jobs that it was never compared with.
local function one_node(set, g, job, rec, parts)
   local max, tasks = number(job.max_nodes, NO_VAL) or 0, number(job.num_tasks, NO_VAL) or 1
   if max == 1 or max == 0 and tasks < 2 then return end
   local cpus = tasks * (number(job.cpus_per_task, NO_VAL16) or 1)
   if cpus > 1 then -- one that may not fit is left as it is
      local fields = {
         "threads_per_core", "ntasks_per_core", "ntasks_per_socket", "sockets_per_node", "cores_per_socket",
      }
      for _, field in ipairs(fields) do
         if number(job[field], NO_VAL16) then return end
      end
      if job.min_mem_per_cpu or text(job.features) ~= "" then return end
      for name in partitions(job, rec, parts):gmatch("[^,]+") do
         if cpus > (g.size[name] or 0) then return end
      end
   end
   set("max_nodes", 1)
end

-- A hash of 32 bits, in numbers that every Lua holds exactly, as eight letters.
local function hash(s)
   local h, out = 5381, ""
   for i = 1, #s do h = (h * 65599 + s:byte(i)) % 4294967296 end
   for _ = 1, 8 do
      out, h = string.char(97 + h % 16) .. out, math.floor(h / 16)
   end
   return out
end

-- What stands for a word that isn't shown: a hash, and the numbers in it, by which the bridge
-- knows names in a row (part_007.csv): "~abcdefgh_007.f".
local function hidden(word)
   local numbers, n = "", 0
   local masked = word:gsub("(%d+)(%a?)", function(digits, letter)
      if letter ~= "" or #digits > 8 then return nil end
      numbers, n = numbers .. "_" .. digits, n + 1
      return "#"
   end)
   if n == 0 or n > 4 then return "~" .. hash(word) end
   return "~" .. hash(masked) .. numbers .. ".f"
end

-- A word of the note of arguments: numbers, options and names of variables are legible, so that
-- the bridge sees what differs only in size; anything else is a hash, since AdminComments are
-- shown to all users.
local function noted(word)
   local function value(v)
      return v:match("^%.?%d[%d.]*[xX]?%d*[eE]?[-+]?%d*%a?%a?%a?$") and #v <= 10 and v or hidden(v)
   end
   local name, v = word:match("^(%-?%-?[%a_][%w_-]*)=(.*)$")
   if name and #name <= 24 then return name .. "=" .. value(v) end
   local short, n = word:match("^(%-%a)(%d[%d.]*)$")
   if short and #n <= 10 then return word end
   return word:match("^%-%-?%a[%w_-]*$") and #word <= 24 and word or value(word)
end

local ARGS = 300 -- bytes that the note of arguments may have; the rest is one hash

-- A note of what a batch script gets besides its environment: its arguments, and the variables
-- that sbatch --export=NAME=value sets. "" = nothing.
local function note_args(job)
   if job.script == nil then return "" end
   local words = {}
   for i = 1, (number(job.argc, NO_VAL) or 1) - 1 do words[#words + 1] = text(job.argv[i]) end
   for set in text(job.environment["SLURM_EXPORT_ENV"]):gmatch("[^,]+") do
      if set:match("^[%a_][%w_]*=") and not set:match("^SLURMBRIDGE_APP=") then words[#words + 1] = set end
   end
   local out, n = {}, 0
   for i, word in ipairs(words) do
      local w = noted(word)
      n = n + #w + 1
      if n > ARGS - 10 then
         out[#out + 1] = "~" .. hash(table.concat(words, "\0", i))
         break
      end
      out[#out + 1] = w
   end
   return #out > 0 and "(args " .. table.concat(out, " ") .. ")" or ""
end

-- A note of what a job's owner calls its application by SLURMBRIDGE_APP in its environment. "" = nothing.
local function note_app(job)
   if job.script == nil then return "" end
   local app = text(job.environment["SLURMBRIDGE_APP"])
   return #app <= 64 and app:match("^[%w._-]+$") and "(app " .. app .. ")" or ""
end

-- The note of a submission that its AdminComment begins with, "" = nothing is noted.
local function note_of(job, defaults)
   local notes = {}
   for _, note in ipairs({ function() return defaults end, note_app, note_args }) do
      local done, s = pcall(note, job)
      if done and s ~= "" then notes[#notes + 1] = s end
   end
   return table.concat(notes, " ")
end

-- Whether a rule is about a job. A rule's words are "never", "pernode" and name:value,value.
-- Of several partitions all must be listed; to be left alone, one is enough.
local function ruled(rule, is, parts)
   local never = rule:find("never ", 1, true) == 1
   for name, list in rule:gmatch("(%a+):(%S*)") do
      local function listed(v) return ("," .. list .. ","):find("," .. v .. ",", 1, true) ~= nil end
      if name == "partition" then
         local some, all = false, true
         for p in parts:gmatch("[^,]+") do
            local yes = listed(p)
            some, all = some or yes, all and yes
         end
         if not (never and some or not never and all) then return false end
      elseif is[name] == "" or not listed(is[name]) then
         return false
      end
   end
   return true
end

-- A number from 0 to 99 by the user's number, as the bridge computes it.
local function bucket(uid)
   local h = 5381
   for i = 1, #uid do h = (h * 65599 + uid:byte(i)) % 4294967296 end
   return h % 99991 % 100
end

-- The rule by which a job is adopted, nil = by none. Accounts and QOS have small letters: Slurm makes them so later.
local function rule_of(g, job, parts, uid)
   local function own(field) -- what the job says, else what its user has by default
      local v = text(job[field])
      if v ~= "" then return v:lower() end
      local ok, default = pcall(function() return job["default_" .. field] end)
      return ok and text(default):lower() or ""
   end
   local owner = string.format("%.0f", number(job.user_id, NO_VAL) or uid)
   if bucket(owner) >= (tonumber(g.percent) or 0) or g.out["user:" .. owner] then return nil end
   local is = { user = owner, account = own("account"), qos = own("qos"), reservation = text(job.reservation) }
   if g.out["account:" .. is.account] then return nil end
   for _, rule in ipairs(g.adopt) do
      if ruled(rule, is, parts) then return not rule:find("never ", 1, true) and rule or nil end
   end
   return nil
end

local MEMORY = { interactive = true, ["try-memory"] = true, memory = true }
local PLAIN = { ["with=array"] = true, retry = true, report = true, ["no-mail"] = true, interactive = true }
local NEVER = { no = true, off = true, never = true, none = true, ["false"] = true }

-- What a comment wishes about sharing, by the words that the bridge reads, too: whether the job shares with nobody, the
-- type of GPU that it names, and the first word that isn't understood.
local function wishes(comment)
   local no, kind, odd = false, nil, nil
   for word in text(comment):gmatch("[^ \t\n,;]+") do
      local as, wish = word:match("^(%a+[:=])(.*)$")
      as = (as or ""):lower()
      if as:match("^shared?[:=]$") then
         local key, value = wish:match("^([^=]*)=?(.*)$")
         key = key:lower()
         local amount, known = value:match("^(%d+)[MG]$"), false
         if NEVER[wish:lower()] then
            no, known = true, true
         elseif key == "model" and value:match("^[%w._+-]+$") and #value <= 64 then
            kind, known = value, true
         elseif key == "max-slowdown" then
            local n = value:match("^%d+%.?%d*$") and tonumber(value)
            known = n and n >= 1 and n <= 100
         elseif MEMORY[key] and amount then
            known = tonumber(amount) > 0 and tonumber(amount) < NO_VAL
         end
         -- Other words than share: may be another tool's.
         if as == "share:" and not (known or PLAIN[wish:lower()]) then odd = odd or word end
      end
   end
   return no, kind, odd
end

-- A list of requests as one GPU and the rest of the list; nil if it holds anything else of GPUs.
local function one_gpu(list)
   local gpu, rest = nil, {}
   for request in text(list):gmatch("[^,]+") do
      local p = parse(request)
      if not p.gpu then
         rest[#rest + 1] = request
      else
         local n = p.kind:match("^%d+$") or p.count
         if gpu or p.name ~= "gpu" or n ~= "1" then return nil end
         gpu = p.prefix .. "gpu:" .. (p.kind:match("^%d*$") and "" or p.kind .. ":") .. "1"
      end
   end
   return gpu, table.concat(rest, ",")
end

-- What a job of a whole GPU has in its environment and an adopted one may not: what srun would ask for again is unset,
-- and gres/mps sets some for no job (seen on 24.11.5 and 26.05.5).
local LOST = { "SLURM_GPU", "SLURM_TRES_", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK" }

-- Whether an unchanged job can't hold shares for what its script says: it has a deadline, gives its steps GPUs of their
-- own, reads what an adopted job hasn't, or is longer than is read here.
local function asks_more(script)
   if #script > SCRIPT_LIMIT or script:find("\n#SBATCH[^\n]*%-%-deadline") or step_gpu(script) then return true end
   for line in script:gmatch("[^\n]+") do
      if not line:find("^%s*#") then
         for _, name in ipairs(LOST) do
            if line:find(name, 1, true) then return true end
         end
      end
   end
   return false
end

-- Of an unchanged batch job of one GPU on one node that a rule adopts: its new request, nil to leave
-- it as it is. Only --gpus=1 and --gpus-per-task=1 change, into one GPU per node: Slurm replaces no
-- others later.
local function adopted(g, job, parts, uid)
   if #g.adopt == 0 or job.script == nil or job.cron_job or number(job.het_job_offset, NO_VAL) then return nil end
   local tasks = number(job.num_tasks, NO_VAL) or 1
   local min, max = number(job.min_nodes, NO_VAL) or 1, number(job.max_nodes, NO_VAL) or 0
   local task = text(job.tres_per_task)
   local none = text(job.tres_per_node) == "" and text(job.tres_per_job) == ""
   if none and not task:find("gpu", 1, true) then return nil end
   local shared = number(job.shared, NO_VAL16)
   if min > 1 or max > 1 or tasks > 1 and not (min == 1 and max == 1) or shared and shared ~= 1 then return nil end
   local fields = { "tres_per_socket", "features", "reservation", "cpus_per_tres", "mem_per_tres", "tres_freq" }
   for _, field in ipairs(fields) do
      if text(job[field]) ~= "" then return nil end
   end
   if (number(job.ntasks_per_tres, NO_VAL16) or 0) > 0 then return nil end
   local names = partitions(job, nil, parts)
   if g.cpus["*"] or g.mem["*"] then return nil end -- Slurm refuses to replace such a request
   for name in names:gmatch("[^,]+") do
      if g.cpus[name] or g.mem[name] or g.leave[name] or next(g.only) and not g.only[name] then return nil end
   end
   local no, _, misread = wishes(job.comment)
   if no or misread then return nil end
   local rule = rule_of(g, job, names, uid)
   if not rule or asks_more(text(job.script)) then return nil end

   local node, others = one_gpu(job.tres_per_node)
   local whole, more = one_gpu(job.tres_per_job)
   local per_task, rest = one_gpu(task)
   if text(job.tres_per_node) ~= "" then
      return node and others == "" and text(job.tres_per_job) == "" and not task:find("gpu", 1, true) and {} or nil
   end
   if tasks > 1 or rule:find("pernode ", 1, true) then return nil end
   if whole and more == "" and not task:find("gpu", 1, true) then
      return { { "tres_per_node", whole }, { "tres_per_job", "" } }
   end
   if per_task and text(job.tres_per_job) == "" then
      return { { "tres_per_node", (per_task:gsub("=", ":")) }, { "tres_per_task", rest }, { "tres_bind", "" } }
   end
   return nil
end

-- The type of GPU that a job's owner names (share:model=TYPE), with a colon, where Slurm has shares of that type;
-- "" = any.
local function model(g, job)
   local _, name = wishes(job.comment)
   return name and g.model[name] and name .. ":" or ""
end

-- What is to be changed of a job as a list of {field, value}, {} for nothing; or
-- nil and why the job is refused. said is what its owner is told. Reads only.
local function plan(job, rec, parts, uid)
   local new = rec == nil
   local read, g, gate = pcall(read_gate)
   if not read then
      g, gate = { shares = {}, cpus = {}, mem = {}, size = {}, adopt = {}, model = {}, type = {} }, nil
   end
   local sharing = {
      gres = (g.gres or CONF.gres) == "shard" and "shard" or "mps",
      units = text(g.units):match("^[1-9]%d*$") or CONF.units,
   }
   local apart_nodes, kept = whole_nodes(job, rec, parts)
   sharing.whole = apart_nodes and "gpu:" .. model(g, job) .. "1"
      or sharing.gres .. ":" .. model(g, job) .. sharing.units
   local police = read and not apart_nodes and policed(g, job, rec, parts, uid)
   local node, whole = examine(job.tres_per_node, sharing, police), examine(job.tres_per_job, sharing, police)
   local odd = examine(text(job.tres_per_socket) .. "," .. text(job.tres_per_task), sharing, police)
   local named = node.named + whole.named + odd.named > 0
   local apart = odd.part or odd.rounded or whole.part or whole.rounded
   if apart and named then return nil, "a part of a GPU is asked for per node: --gres=gpu:shared" end
   local asked = node.n + whole.n + odd.n > 0
   if (apart_nodes or kept) and not asked and not is_bridge(g, uid) and moves_shares(job, rec) then
      if kept then return { { "partition", kept } } end
      -- Slurm 22.05 can't give the job a GPU in place of its shares.
      return nil, "the job holds shares of a GPU and would never start on nodes of its own: submit it there anew"
   end
   local partition = read and not asked and not apart_nodes and shares_only(g, job, rec, parts, uid)
   if partition then
      local changes, why, said = only_shares(g, job, rec, parts, partition, sharing)
      if kept and changes and #changes > 0 then changes[#changes + 1] = { "partition", kept } end
      return changes, why, said
   end
   if new and gate and not (asked or apart or node.rounded or apart_nodes or kept) then
      local changes = adopted(g, job, parts, uid)
      local dependency = changes and gated(job, gate)
      if not dependency then return {} end
      local note = note_of(job, "")
      if note ~= "" and text(job.admin_comment) == "" then
         changes[#changes + 1] = { "admin_comment", "slurmbridge: " .. note }
      end
      changes[#changes + 1] = { "dependency", dependency }
      return changes
   end
   if apart or not asked and not node.rounded then return {} end
   local by_hand = node.part
   local said
   if asked then
      local why = refuse(job, node, whole, odd)
      local _, _, misread = wishes(job.comment)
      if named and new and not why and misread then
         why = "--comment=" .. misread:sub(1, 60):gsub("[^%w/:=._-]", "?") .. " isn't understood: say share:no, "
            .. "share:max-slowdown=1.15, share:memory=8G, share:interactive, share:try-memory=8G, share:with=array, "
            .. "share:model=TYPE, share:retry, share:report or share:no-mail"
      end
      if named and new and not why and not apart_nodes then why, said = step_trouble(job) end
      if why and named then return nil, why end
      -- Slurm takes parts of GPUs that can't be gpu:shared. On several nodes they become whole GPUs,
      -- others are left as they are.
      if why and not (new and nodes(job) and node.n == 1 and not node.other) then return {} end
      if why then node.rounded, asked = true, false end
   end

   local changes = {}
   local function set(field, value) changes[#changes + 1] = { field, value } end
   if whole.n == 0 then
      set("tres_per_node", node.list)
   else
      -- Shares are per node; --gpus=shared has nothing else in it (refuse).
      local list = whole.prefix .. sharing.whole
      if node.list ~= "" then list = node.list .. "," .. list end
      set("tres_per_node", list)
      set("tres_per_job", "")
   end
   if kept then set("partition", kept) end
   if new and asked and not apart_nodes then
      one_node(set, g, job, rec, parts)
      local note = note_of(job, by_hand and "" or set_defaults(set, g, job, rec, parts))
      if note ~= "" and text(job.admin_comment) == "" then set("admin_comment", "slurmbridge: " .. note) end
   end
   -- Where shares are of a type, as of MIG instances, a step asks for one of any, however many the job will have: those
   -- of that type, which it asks for by itself, Slurm doesn't find (22.05.8, 24.11.5, 26.05.5).
   if asked and next(g.model) and not apart_nodes then changes.step = sharing.gres .. ":1" end
   local dependency = new and asked and not apart_nodes and gated(job, gate)
   if dependency then set("dependency", dependency) end
   if by_hand then
      local instead = node.rounded and "whole GPUs: " .. node.list or "--gres=gpu:shared"
      said = by_hand .. " asks for a part of a GPU. Which jobs share one is decided by what they use: this is now "
         .. instead:gsub("gres[:/]", "")
   end
   return changes, nil, said
end

-- The variables in which sbatch hands a request for GPUs on, its own or that of a job which it was called in: every
-- srun of the job would ask for them again, and the job holds shares.
local REQUESTS = {
   "SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK", "SLURM_GRES",
   "SLURM_TRES_PER_TASK",
}

-- Empties those variables of a batch job, where it gets shares in place of GPUs, but for what its steps are to ask for.
-- sbatch --gpus=shared leaves one in any case.
local function clear_environment(job, changes)
   if job.script == nil then return end -- srun and salloc send no environment
   local shares = false
   for _, c in ipairs(changes) do
      shares = shares or c[1] == "tres_per_node" and (c[2]:find("mps:", 1, true) or c[2]:find("shard:", 1, true))
   end
   local env = job.environment
   for _, name in ipairs(REQUESTS) do
      local asks = text(env[name])
      local gpus = name:find("GPUS", 1, true) or asks:find("gpu", 1, true)
      if asks:match("^shared") or asks ~= "" and gpus and shares then env[name] = "" end
   end
   if changes.step then env.SLURM_GRES = changes.step end
end

-- Notes in a batch job's environment, for the task prolog, that it asks for a part of a GPU by hand,
-- so that the part stays what Slurm makes of it; a job that is submitted by such a job inherits the
-- note, and loses it. So it does with what the steps of that job ask for.
local function note_hand(job)
   if job.script == nil then return end
   local is = false
   for request in text(job.tres_per_node):gmatch("[^,]+") do
      local p = parse(request)
      is = is or (p.name == "mps" or p.name == "shard") and part(p, { gres = p.name, units = CONF.units })
   end
   local env = job.environment
   local step = text(env.SLURM_GRES):match("^%a+:(%d+)$")
   if step == "1" or step == CONF.units then env.SLURM_GRES = "" end
   if is ~= (text(env.SLURMBRIDGE_HAND) ~= "") then env.SLURMBRIDGE_HAND = is and "1" or "" end
end

-- rec is nil for a new job.
local function guarded(job, rec, parts, uid)
   if not rec then pcall(leave_gate, job) end
   local ok, changes, why, said = pcall(plan, job, rec, parts, uid)
   if not ok then
      pcall(slurm.log_error, "slurmbridge: job_submit: %s", tostring(changes))
      return slurm.SUCCESS
   end
   if why then
      pcall(slurm.log_user, "slurmbridge: %s", why)
      return slurm.ERROR
   end
   if #changes == 0 then
      if rec == nil then pcall(note_hand, job) end
      return slurm.SUCCESS
   end
   local done
   done, why = pcall(function()
      for _, c in ipairs(changes) do job[c[1]] = c[2] end
      if rec == nil then
         note_hand(job)
         clear_environment(job, changes)
      end
   end)
   if not done then pcall(slurm.log_error, "slurmbridge: job_submit: %s", tostring(why)) end
   if said then pcall(slurm.log_user, "slurmbridge: %s", said) end
   pcall(wake)
   return slurm.SUCCESS
end

-- For each new job, with the arguments of slurm_job_submit. Returns slurm.SUCCESS, or
-- slurm.ERROR after a sentence to the user where the request makes no sense. Without
-- uid parts of a GPU are left as they are.
function M.submit(job, parts, uid)
   return guarded(job, nil, parts, uid)
end

-- For each change of a job, with the arguments of slurm_job_modify: one to gpu:shared
-- gets a whole GPU's shares. It isn't gated: a change that names no dependency must
-- leave the job's own.
function M.modify(job, rec, parts, uid)
   return guarded(job, rec or {}, parts, uid)
end

-- A site's script may load this one while slurmctld already calls its own functions: they stay.
slurm_job_submit = slurm_job_submit or function(job, parts, uid)
   return M.submit(job, parts, uid)
end

slurm_job_modify = slurm_job_modify or function(job, rec, parts, uid)
   return M.modify(job, rec, parts, uid)
end

return M
