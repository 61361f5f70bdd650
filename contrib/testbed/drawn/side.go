package drawn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

// Times of a run. A command that takes longer is ended: with some settings slurmctld itself stops answering.
const (
	commandTimeout = 20 * time.Second
	longestRun     = 75 * time.Second // of plain Slurm, from the first submission on
	moreTime       = 45 * time.Second // that the bridge may take in addition
	quietPlain     = 18 * time.Second // without a change nothing more comes
	quietBridge    = 40 * time.Second // max_delay and a lease's end are in it
)

// side is one of the two clusters that a case runs on.
type side struct {
	c     *Case
	s     *cluster.Stack
	plain bool
	begin time.Time // a whole second, the same on both sides

	mu      sync.Mutex
	ids     map[string]string   // jobs' numbers, by name
	refused map[string]string   // what a client said that failed, by the job's name
	met     map[string][]string // states that a job was in when each of its events came, and whether Slurm took the event
	clients sync.WaitGroup
	// suffered are the faults that could be played.
	suffered []suffered
	asks     []float64 // how long squeue took each time, s
}

// suffered is a fault that was played, and when, s after the beginning. node "" = it isn't one node's.
type suffered struct {
	Name, Node string
	From, To   float64
}

// seen is what a side shows of one job, or of one task of an array. Times are s after the beginning, NaN = none.
type seen struct {
	ID, Task    string
	State       string
	Reason      string
	Exit        string
	Restarts    string
	Start, End  float64
	CPUs, Mem   string
	Nodes       string
	Tasks       string
	Where       string // its nodes
	Gres        string
	Steps       map[string]string            // exit codes, by step
	Environment map[string]map[string]string // by step and rank
	// Began is when a batch job first began.
	Began float64
	// Places are the GPUs of each run, as NODE:GPU, by how often the job had been put back.
	Places map[int][]string
}

// result is what one side shows in the end.
type result struct {
	Jobs    map[string]*seen // by name and task
	Refused map[string]string
	Met     map[string][]string
	// AskS is how long squeue took, the median, s: 0.02 on a machine at rest.
	AskS float64
	// Suffered are the faults that were played.
	Suffered []suffered
	// Says is what the bridge says is wrong; Misplaced how many jobs ran on another GPU than planned.
	Says      []string
	Misplaced float64
}

// setup is the stack of a side.
func (o *options) setup(c *Case, root string, plain bool) cluster.Setup {
	setup := *o.base
	setup.Scale, setup.Sharing, setup.Lease, setup.Settings = 1, c.Sharing, 30*time.Second, c.Settings
	computes := slices.ContainsFunc(c.Jobs, func(j Job) bool { return j.App != "" })
	setup.Bare, setup.Card.Instances = plain && !computes, c.Instances
	if !plain {
		setup.Policy = "dqn"
	}
	for _, n := range c.Nodes {
		setup.NodeGPUs, setup.Models = append(setup.NodeGPUs, len(n.Types)), append(setup.Models, n.Model)
	}
	for s := range 80 {
		setup.Profiles = append(setup.Profiles, &rlcore.Profile{
			App: appName(s + 1), DurationS: float64(s + 1), PeriodS: float64(s + 1),
			Series: []rlcore.Use{{GPU: 0.1, Core: 0.1, MemMiB: 2000}},
		})
	}
	for i := range c.Jobs {
		j := &c.Jobs[i]
		p, computes := apps.ByName(j.App)
		there := j.New || slices.ContainsFunc(setup.Profiles, func(p *rlcore.Profile) bool { return p.App == j.profile() })
		if computes && !there {
			known := app.Scaled(p, float64(j.LengthS)/p.DurationS, 1)
			known.App = j.profile()
			setup.Profiles = append(setup.Profiles, known)
		}
	}
	setup.Adjust = func(so *slurmtest.Options) {
		so.Root = root
		so.Extra = append(so.Extra, slurmtest.SoonAgain)
		c.options(so)
		if plain && c.Plugins != "" {
			so.JobSubmit = strings.Trim(strings.ReplaceAll(c.Plugins, "lua", ""), ",")
		} else if c.Plugins != "" {
			so.JobSubmit = c.Plugins
		}
		if c.Site == "" {
			return
		}
		ours, err := os.ReadFile(o.base.Lua)
		if plain || err != nil {
			ours = []byte("local function pass() return slurm.SUCCESS end\nreturn { submit = pass, modify = pass }\n")
		}
		so.Lua, so.JobSubmit = "", "lua"
		if so.Files == nil {
			so.Files = map[string]string{}
		}
		so.Files["job_submit.lua"] = sitesScript[c.Site]
		so.Files["slurmbridge.lua"] = strings.ReplaceAll(string(ours), "/run/slurmbridge/", "DIR/run/")
	}
	return setup
}

// sitesScript is a site's job_submit script, by when it loads ours. Its own policy is seen in a job's environment.
var sitesScript = map[string]string{
	"early": `local there, slurmbridge = pcall(dofile, "DIR/slurmbridge.lua")
function slurm_job_submit(job, parts, uid)
   if job.script then job.environment.SITE = "policy" end
   return there and slurmbridge.submit(job, parts, uid) or slurm.SUCCESS
end
function slurm_job_modify(job, rec, parts, uid)
   return there and slurmbridge.modify(job, rec, parts, uid) or slurm.SUCCESS
end
`,
	"late": `function slurm_job_submit(job, parts, uid)
   if job.script then job.environment.SITE = "policy" end
   local there, slurmbridge = pcall(dofile, "DIR/slurmbridge.lua")
   return there and slurmbridge.submit(job, parts, uid) or slurm.SUCCESS
end
function slurm_job_modify(job, rec, parts, uid)
   local there, slurmbridge = pcall(dofile, "DIR/slurmbridge.lua")
   return there and slurmbridge.modify(job, rec, parts, uid) or slurm.SUCCESS
end
`,
}

// probe notes when a step runs and what it sees: probe JOB STEP [STATUS [SECONDS]].
const probe = `#!/bin/sh
f=OUT/seen,$1,$SLURM_ARRAY_TASK_ID,$2,${SLURM_RESTART_COUNT:-0},${SLURM_PROCID:-0},$$
{
	echo "at=$(date +%s.%N)"
	echo "status=$3"
	[ -z "$CUDA_MPS_PIPE_DIRECTORY" ] || [ -d "$CUDA_MPS_PIPE_DIRECTORY" ] || echo "mps=gone"
	env
} >"$f.new" && mv "$f.new" "$f"
[ -z "$4" ] || exec sleep "$4"
`

// start starts a side's Slurm. A configuration that Slurm refuses is an error.
func (o *options) start(ctx context.Context, c *Case, root string, plain bool) (*side, error) {
	setup := o.setup(c, root, plain)
	if !plain && len(c.Faults) > 0 {
		var err error
		if setup.Disk, err = cluster.NewDisk("slurm", diskMiB); err != nil {
			return nil, err
		}
		setup.Wired = true
	}
	sd := &side{
		c: c, s: cluster.New(setup), plain: plain, ids: map[string]string{},
		refused: map[string]string{}, met: map[string][]string{},
	}
	slurm, err := slurmtest.Start(ctx, sd.s.Options())
	if err != nil {
		sd.closeDisk()
		return nil, err
	}
	sd.s.Cluster = slurm
	if err := sd.prepare(ctx); err != nil {
		err = sd.s.CloseAfter(ctx, err)
		sd.closeDisk()
		return nil, err
	}
	return sd, nil
}

// prepare writes the probe and gives the case's commands that come before the first job.
func (sd *side) prepare(ctx context.Context) error {
	body := strings.ReplaceAll(probe, "OUT", sd.s.Path("out"))
	if err := errors.Join(os.MkdirAll(sd.s.Path("bin"), 0o755),
		cluster.WriteProgram(sd.s.Path("bin", "probe"), body)); err != nil {
		return err
	}
	for _, command := range sd.c.Accounting {
		if err := sd.s.Account(ctx, strings.Fields(command)...); err != nil {
			return err
		}
	}
	for _, command := range sd.c.Before {
		words := strings.Fields(command)
		if _, err := sd.run(ctx, "", words[0], words[1:]...); err != nil {
			return err
		}
	}
	if sd.c.Before != nil {
		cluster.Sleep(ctx, reservedS)
	}
	return nil
}

// reservedS is how long slurmctld takes at most to show which nodes are reserved, and a bit, s (_slurmctld_background).
const reservedS = 6

// diskMiB is the size of the disk that fills.
const diskMiB = 512

func (sd *side) closeDisk() {
	if sd.s.Setup.Disk != nil {
		sd.s.Setup.Disk.Close()
	}
}

// close ends the side's cluster.
func (sd *side) close() {
	_ = sd.s.Close() // what is left goes with the next start
	sd.closeDisk()
}

// sleepUntil waits until so many s after the beginning.
func (sd *side) sleepUntil(ctx context.Context, s float64) bool {
	return cluster.Sleep(ctx, time.Until(sd.begin).Seconds()+s)
}

// play submits the case's jobs, has its events come, and returns what is seen in the end.
func (sd *side) play(ctx context.Context, done <-chan struct{}) (*result, error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var events sync.WaitGroup
	for _, e := range sd.c.Events {
		events.Go(func() { sd.happens(ctx, e, "") })
	}
	for _, f := range sd.c.Faults {
		if sd.plain && !f.kind().Slurm {
			continue
		}
		events.Go(func() {
			if sd.sleepUntil(ctx, float64(f.AtS)) {
				sd.suffer(ctx, f)
			}
		})
	}
	if !sd.sleepUntil(ctx, 0) {
		return nil, ctx.Err()
	}
	last := 0
	for i := range sd.c.Jobs {
		j := &sd.c.Jobs[i]
		sd.sleepUntil(ctx, float64(j.AtS))
		for try := 1; sd.submit(ctx, j) && len(sd.c.Faults) > 0 && try < 6; try++ {
			cluster.Sleep(ctx, 3) // slurmctld was away
		}
		last = max(last, j.AtS)
		for _, e := range j.Events {
			last = max(last, j.AtS+e.AtS)
		}
		events.Go(func() {
			for _, e := range j.Events {
				e.AtS += j.AtS
				sd.happens(ctx, e, j.Name)
			}
		})
	}
	events.Wait()
	if err := sd.waitForEnd(ctx, float64(last), done); err != nil {
		return nil, err
	}
	r, err := sd.look(ctx)
	stop()
	sd.clients.Wait()
	return r, err
}

// errNoJob begins what is said of a job that names one that there isn't.
const errNoJob = "there is no job "

// with fills in the numbers of jobs; it fails where a job has none.
func (sd *side) with(ctx context.Context, text, own string) (string, error) {
	if own != "" {
		text = strings.ReplaceAll(text, "JOB", "{"+own+"}")
	}
	for _, j := range sd.c.Jobs {
		if !strings.Contains(text, "{"+j.Name+"}") {
			continue
		}
		id := sd.id(ctx, j.Name)
		if id == "" {
			return "", errors.New(errNoJob + j.Name)
		}
		text = strings.ReplaceAll(text, "{"+j.Name+"}", id)
	}
	return text, nil
}

// id is a job's number, "" = it has none.
func (sd *side) id(ctx context.Context, name string) string {
	sd.mu.Lock()
	id := sd.ids[name]
	sd.mu.Unlock()
	if id != "" {
		return id
	}
	out, err := sd.run(ctx, "", "squeue", "-h", "-a", "-t", "all", "-n", name, "-o", "%A")
	if words := strings.Fields(out); err == nil && len(words) > 0 {
		return words[0]
	}
	return ""
}

// run runs one of Slurm's commands with a deadline.
func (sd *side) run(ctx context.Context, as, name string, args ...string) (string, error) {
	ctx, stop := context.WithTimeout(ctx, commandTimeout)
	defer stop()
	return sd.s.RunAs(ctx, as, name, args...)
}

// request is an option as this side is given it: on plain Slurm a share is a GPU.
func (sd *side) request(arg string) string {
	if sd.plain && !strings.HasPrefix(arg, "--comment") {
		return strings.ReplaceAll(arg, "shared", "1")
	}
	return arg
}

// suffer plays a fault.
func (sd *side) suffer(ctx context.Context, f Fault) {
	from := time.Since(sd.begin).Seconds()
	node, err := f.kind().Play(ctx, sd.s, f.Node, f.S)
	if err != nil {
		return // there was nothing to break
	}
	sd.mu.Lock()
	defer sd.mu.Unlock()
	sd.suffered = append(sd.suffered, suffered{f.Name, node, from, time.Since(sd.begin).Seconds()})
}

// submit submits a job. It reports whether slurmctld didn't answer.
func (sd *side) submit(ctx context.Context, j *Job) (away bool) {
	args := []string{"--job-name=" + j.Name}
	for _, a := range j.Args {
		a, err := sd.with(ctx, sd.request(a), "")
		if err != nil {
			sd.note(j.Name, "", err)
			return false
		}
		args = append(args, a)
	}
	if j.Client == "sbatch" {
		ctx, stop := context.WithTimeout(ctx, commandTimeout)
		defer stop()
		id, err := sd.s.Submit(ctx, j.User, j.script(sd.s.Path("bin"), sd.s.StateOf(0)), args...)
		sd.note(j.Name, id, err)
		return err != nil && (ctx.Err() != nil || strings.Contains(err.Error(), "contact"))
	}
	cmd, err := sd.s.Command(ctx, j.User, j.Client, append(args, j.command(sd.s.Path("bin"), sd.s.StateOf(0))...)...)
	if err != nil {
		sd.note(j.Name, "", err)
		return false
	}
	sd.clients.Go(func() {
		out, err := cmd.CombinedOutput()
		if err != nil && ctx.Err() == nil {
			sd.note(j.Name, "", fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out))))
		}
	})
	cluster.Sleep(ctx, 0.3) // the next job is to come behind it
	return false
}

// note notes what became of a submission.
func (sd *side) note(name, id string, err error) {
	sd.mu.Lock()
	defer sd.mu.Unlock()
	sd.ids[name] = id
	delete(sd.refused, name)
	if err != nil {
		sd.refused[name] = err.Error()
	}
}

// happens has an event come: of the operator, or the owner of a job.
func (sd *side) happens(ctx context.Context, e Event, own string) {
	if !sd.sleepUntil(ctx, float64(e.AtS)+0.5) {
		return
	}
	state := ""
	as := ""
	if own != "" {
		state = sd.state(ctx, sd.id(ctx, own))
		as = sd.owner(own, e.Command)
	}
	text, err := sd.with(ctx, e.Command, own)
	if err == nil {
		words := strings.Fields(text)
		_, err = sd.run(ctx, as, words[0], words[1:]...)
	}
	taken := "taken"
	if err != nil {
		taken = "refused"
	}
	sd.mu.Lock()
	defer sd.mu.Unlock()
	sd.met[own] = append(sd.met[own], fmt.Sprintf("%s, %s", state, taken))
}

// owner is the user who gives a command about a job: the job's owner, or root ("") for what only operators may do.
func (sd *side) owner(name, command string) string {
	for _, word := range []string{"suspend", "resume", "NumCPUs", "top "} {
		if strings.Contains(command, word) {
			return ""
		}
	}
	return sd.c.find(name).User
}

// state is that of a job, or of all tasks of an array.
func (sd *side) state(ctx context.Context, id string) string {
	out, err := sd.run(ctx, "", "squeue", "-h", "-a", "-r", "-t", "all", "-j", id, "-o", "%T")
	if err != nil {
		return "unknown"
	}
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(strings.Fields(out)))), " ")
}

// waitForEnd waits until all jobs have ended, or nothing more happens. done is closed when the other side is done.
func (sd *side) waitForEnd(ctx context.Context, lastS float64, done <-chan struct{}) error {
	quiet, longest := quietPlain, longestRun
	if !sd.plain {
		quiet, longest = quietBridge, longestRun+moreTime
	}
	if len(sd.c.Faults) > 0 || lastS > 60 { // a campaign, whose queue is long
		longest += 10*time.Minute + time.Duration(lastS)*time.Second
		quiet += time.Minute
	}
	before, changed := "", time.Now()
	for time.Since(sd.begin) < longest {
		asked := time.Now()
		out, err := sd.run(ctx, "", "squeue", "-h", "-a", "-r", "-t", "all", "-o", "%A %j %T %r")
		sd.asks = append(sd.asks, time.Since(asked).Seconds())
		if ctx.Err() != nil {
			return ctx.Err()
		}
		running, waiting := 0, 0
		for line := range strings.Lines(out) {
			f := strings.Fields(line)
			if len(f) < 4 || !strings.HasPrefix(f[1], "j") {
				continue
			}
			if len(sd.c.Faults) > 0 && (strings.HasPrefix(f[3], "launch_failed") || f[3] == "BadConstraints") {
				// A job that slurmctld found no node for, or started twice, waits for an operator.
				_, _ = sd.run(ctx, "", "scontrol", "release", f[0])
			}
			switch f[2] {
			case "PENDING":
				waiting++
			case "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED":
				running++
			}
		}
		if out != before || err != nil || time.Since(sd.begin).Seconds() < lastS+1 {
			before, changed = out, time.Now()
		}
		over := running+waiting == 0 && time.Since(sd.begin).Seconds() > lastS+3
		if over || running == 0 && time.Since(changed) > quiet {
			return nil
		}
		if !cluster.Sleep(ctx, 2) {
			return ctx.Err()
		}
	}
	return nil
}

// look reads what is seen in the end.
func (sd *side) look(ctx context.Context) (*result, error) {
	ctx, stop := context.WithTimeout(ctx, commandTimeout)
	defer stop()
	all, err := sd.s.Jobs(ctx)
	if err != nil {
		return nil, err
	}
	sd.mu.Lock()
	r := &result{Jobs: map[string]*seen{}, Refused: sd.refused, Met: sd.met, Suffered: sd.suffered}
	sd.mu.Unlock()
	for _, f := range all {
		name := f["JobName"]
		if !strings.HasPrefix(name, "j") {
			continue // the gate
		}
		s := &seen{
			ID: f["JobId"], Task: cmp.Or(f["ArrayTaskId"], f["HetJobOffset"]),
			State: f["JobState"], Reason: f["Reason"], Exit: f["ExitCode"],
			Restarts: f["Restarts"], Start: sd.clock(f["StartTime"]), End: sd.clock(f["EndTime"]),
			Nodes: f["NumNodes"], Tasks: f["NumTasks"], Where: f["NodeList"], Gres: f["TresPerNode"],
			CPUs: f["NumCPUs"], Steps: map[string]string{}, Environment: map[string]map[string]string{},
			Began: math.NaN(), Places: map[int][]string{},
		}
		for _, part := range strings.Split(cmp.Or(f["AllocTRES"], f["TRES"]), ",") {
			if v, ok := strings.CutPrefix(part, "mem="); ok {
				s.Mem = v
			}
		}
		if neverRan := ended(s.State) && s.State != "COMPLETED" && s.End-s.Start < 1; s.State == "PENDING" || neverRan {
			s.Start = math.NaN() // Slurm's guess, or when it was cancelled
		} else if !ended(s.State) {
			s.End = time.Since(sd.begin).Seconds() // Slurm shows when its limit ends
		}
		r.Jobs[jobKey(name, s.Task)] = s
	}
	r.AskS = cluster.Quantile(0.5, sd.asks)
	sd.readProbes(r)
	if !sd.plain {
		r.Says = sd.says()
		r.Misplaced, _ = sd.s.Metric("slurmbridge_group_members_total", "misplaced")
	}
	return r, nil
}

func jobKey(name, task string) string {
	if task == "" {
		return name
	}
	return name + "_" + task
}

// clock reads Slurm's time as s after the beginning.
func (sd *side) clock(text string) float64 {
	t, err := time.Parse("2006-01-02T15:04:05", text)
	if err != nil {
		return math.NaN()
	}
	return t.Sub(sd.begin.UTC()).Seconds()
}

// readProbes adds what probes have noted.
func (sd *side) readProbes(r *result) {
	files, _ := filepath.Glob(sd.s.Path("out", "seen,*"))
	for _, file := range files {
		f := strings.Split(filepath.Base(file), ",")
		body, err := os.ReadFile(file)
		if err != nil || len(f) != 7 || strings.HasSuffix(file, ".new") {
			continue
		}
		s := r.Jobs[jobKey(f[1], f[2])]
		if s == nil {
			continue
		}
		env := map[string]string{}
		for line := range strings.Lines(string(body)) {
			if k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
				env[k] = v
			}
		}
		step := f[3]
		if strings.HasPrefix(step, "ended") {
			s.Steps[step] = env["status"]
			continue
		}
		if at, err := strconv.ParseFloat(env["at"], 64); err == nil && step == "batch" && atoi(f[4]) == 0 {
			s.Began = at - float64(sd.begin.Unix())
		}
		// A step on another node has inherited SLURM_JOB_GPUS, which is the first node's.
		if gpus := cmp.Or(env["SLURM_STEP_GPUS"], env["SLURM_JOB_GPUS"]); gpus != "" {
			for g := range strings.SplitSeq(gpus, ",") {
				s.Places[atoi(f[4])] = append(s.Places[atoi(f[4])], env["SLURMD_NODENAME"]+":"+g)
			}
		}
		// Of a job that was put back the last run counts.
		name := step + "." + f[5]
		if old := s.Environment[name]; old == nil || atoi(old["SLURM_RESTART_COUNT"]) <= atoi(f[4]) {
			s.Environment[name] = env
		}
	}
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// says is what the bridge reports to be wrong.
func (sd *side) says() (out []string) {
	var st struct {
		GateErr string `json:"gate_error"`
		Err     string `json:"error"`
		Misread []struct {
			Field, Says, Truth string
		} `json:"misread"`
		WithoutMPS []string `json:"sharers_without_mps"`
	}
	if err := sd.s.Get("/v1/status", &st); err != nil {
		return []string{"it doesn't answer: " + err.Error()}
	}
	for _, m := range st.Misread {
		out = append(out, fmt.Sprintf("squeue says of the gate %s=%s, which is %s", m.Field, m.Says, m.Truth))
	}
	for _, s := range []string{st.GateErr, st.Err} {
		if s != "" {
			out = append(out, s)
		}
	}
	if st.WithoutMPS != nil {
		out = append(out, "sharers without MPS: "+strings.Join(st.WithoutMPS, " "))
	}
	return out
}

// why is what the bridge says of a job.
func (sd *side) why(ctx context.Context, id string) string {
	out, err := sd.run(ctx, "", sd.s.Bin("slurmbridge"), "why", "--verbose", "--server", sd.s.URL, id)
	if err != nil {
		return err.Error()
	}
	return out
}
