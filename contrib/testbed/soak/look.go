package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/prolog/hostlist"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// badConstraints is Slurm's Reason for a job that no node seems to suit.
const badConstraints = "BadConstraints"

// lookEvery is the time between two looks, s. lookTimeout is how long Slurm has to answer; if it takes longer, no job
// starts there either.
const (
	lookEvery   = 4
	lookTimeout = 5 * time.Second
)

// shown is a job as Slurm shows it. Times are Unix seconds.
type shown struct {
	ID         string // Slurm's number, of an array's task NUMBER_TASK
	State      string
	Reason     string
	Exit       string
	Restarts   int
	Start, End float64 // NaN = none
	Dependency string
	// Places are node and GPU of each GPU, or the node alone where Slurm doesn't show them; none where it runs nowhere.
	// Gres is what it takes there.
	Places []string
	Gres   string
}

var indexes = regexp.MustCompile(`\(IDX:([0-9,-]+)\)`)

// parse reads a job of `scontrol -d show job`, and its name. An array's tasks that have no job of their own yet are one
// job with another name; see tasks.
func parse(f map[string]string) (name string, s shown) {
	name = f["JobName"]
	s = shown{
		ID: f["JobId"], State: f["JobState"], Reason: f["Reason"], Exit: f["ExitCode"], Dependency: f["Dependency"],
		Gres:  f["TresPerNode"],
		Start: slurmTime(f["StartTime"]), End: slurmTime(f["EndTime"]),
	}
	s.Restarts, _ = strconv.Atoi(f["Restarts"])
	if task := f["ArrayTaskId"]; task != "" {
		name, s.ID = name+"_"+task, f["ArrayJobId"]+"_"+task
	}
	if node := f["NodeList"]; s.State == "PENDING" || text.IsNone(node) {
	} else if m := indexes.FindStringSubmatch(f["GRES"]); m != nil {
		s.Places = hostlist.Names(node + ":[" + m[1] + "]")
	} else {
		s.Places = []string{node}
	}
	return name, s
}

// tasks gives each task of an array that ended before any had a job of its own, say at its deadline, its own fields.
func tasks(all []map[string]string) (out []map[string]string) {
	for _, f := range all {
		numbers, _ := hostlist.Numbers(f["ArrayTaskId"], 100)
		if len(numbers) < 2 || !over(f["JobState"]) {
			out = append(out, f)
			continue
		}
		for _, n := range numbers {
			task := maps.Clone(f)
			task["ArrayTaskId"] = strconv.Itoa(n)
			out = append(out, task)
		}
	}
	return out
}

// node is where a job runs or ran, "" = nowhere.
func (s *shown) node() string {
	if len(s.Places) == 0 {
		return ""
	}
	node, _, _ := strings.Cut(s.Places[0], ":")
	return node
}

// onGPU reports whether Slurm shows which GPUs the job has.
func (s *shown) onGPU() bool { return len(s.Places) > 0 && strings.Contains(s.Places[0], ":") }

// over reports whether a job has ended for good.
func over(state string) bool {
	return !slices.Contains([]string{
		"", "PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED",
		"REQUEUE_HOLD", "REQUEUE_FED", "STAGE_OUT",
	}, state)
}

// parseNodes reads `sinfo -h -N -o %N|%R|%a|%T`: whether Slurm would start a job, by NODE|PARTITION.
func parseNodes(text string) map[string]bool {
	out := map[string]bool{}
	for line := range strings.Lines(text) {
		if f := strings.Split(strings.TrimSpace(line), "|"); len(f) == 4 {
			out[f[0]+"|"+f[1]] = f[2] == "up" && slices.Contains([]string{"idle", "mixed", "allocated", "completing"}, f[3])
		}
	}
	return out
}

// slurmTime reads Slurm's time, in UTC; NaN = none.
func slurmTime(s string) float64 {
	t, err := time.Parse("2006-01-02T15:04:05", s)
	if err != nil {
		return math.NaN()
	}
	return float64(t.Unix())
}

// poll polls Slurm and the bridge, and returns how many jobs have not ended and how many run.
func (c *campaign) poll(ctx context.Context) (left, running int, err error) {
	short, stop := context.WithTimeout(ctx, lookTimeout)
	defer stop()
	at := now()
	all, err := c.s.Jobs(short)
	nodes, nerr := c.s.Run(short, "sinfo", "-h", "-N", "-o", "%N|%R|%a|%T")
	dead := !c.o.plain && !c.answers()
	if ctx.Err() != nil {
		return 0, 0, ctx.Err()
	}
	var those []*job
	var last bool
	c.locked(func() {
		if !dead {
			c.dead = 0
		} else if c.dead == 0 {
			c.dead = at
		}
		if errors.Join(err, nerr) == nil {
			c.took(at, all, parseNodes(nodes))
		}
		if busy, ok := c.load.Since(); ok {
			c.busy = busy
		}
		states := map[string]int{}
		for _, j := range c.jobs {
			states[j.State]++
		}
		those, running = c.left(), states["RUNNING"]
		c.line.Show(fmt.Sprintf("%5.0f s  %d jobs, %d not ended, %d running; %d timeout, %d failed; %d faults; CPUs %.0f "+
			"%% busy",
			at-c.began, len(c.jobs), len(those), running, states["TIMEOUT"], states["FAILED"], len(c.faults), 100*c.busy))
		if last = c.until > 0; last && at > c.until {
			those = nil // they are lost
		}
	})
	if last {
		c.hurry(ctx, those)
	}
	return len(those), running, nil
}

// answers reports whether the bridge does.
func (c *campaign) answers() bool {
	resp, err := (&http.Client{Timeout: time.Second}).Get(c.s.URL + "/-/healthy")
	if err == nil {
		_ = resp.Body.Close()
	}
	return err == nil
}

// took notes what a look shows: jobs, and which nodes are in service.
func (c *campaign) took(at float64, all []map[string]string, serves map[string]bool) {
	if c.lastLook > 0 && at-c.lastLook > lookEvery+lookTimeout.Seconds() {
		c.outages = append(c.outages, outage{interval: interval{c.lastLook, at}, GPU: -1, Ends: true})
	}
	c.lastLook = at
	there := map[string]map[string]*job{} // jobs by place and name
	used := map[string]int{}              // GPUs by node
	var seen []*job
	for _, f := range tasks(all) {
		name, s := parse(f)
		j := c.byName[name]
		if j == nil {
			continue
		}
		if !over(s.State) {
			for _, p := range s.Places {
				if there[p] == nil {
					there[p] = map[string]*job{}
				}
				there[p][name] = j
			}
			used[s.node()] += len(s.Places)
		}
		if s.Restarts > j.Restarts && !math.IsNaN(j.Start) {
			j.earlier = append(j.earlier, interval{j.Start, at})
		}
		if len(s.Places) == 0 {
			s.Places = j.Places // where it ran before
		}
		j.shown, j.seenAt = s, at
		seen = append(seen, j)
	}
	for _, on := range there {
		if len(on) > 1 {
			c.groups[strings.Join(slices.Sorted(maps.Keys(on)), " ")] = true
		}
	}
	idle := map[string]bool{} // partitions with an idle GPU in service
	for g, s := range c.slots {
		name, gpus := slurmtest.NodeName(s.Node), c.nodeGPUs[s.Node]
		for _, p := range s.Partitions {
			if !serves[name+"|"+p] {
				c.outages = append(c.outages, outage{interval{at - lookEvery/2, at + lookEvery/2}, g, p, false})
			} else if used[name] < gpus && (gpus == 1 || used[name] == 0) {
				idle[p] = true
			}
		}
	}
	for _, j := range seen {
		switch j.State {
		case "PENDING":
			j.impossible = j.impossible || j.Reason == badConstraints
			gated := j.Reason == "Dependency" && strings.Contains(j.Dependency, "after:") &&
				!strings.Contains(j.Dependency, "afterany")
			j.gate.note(at, c.dead, gated, idle[j.Partition])
		case "RUNNING", "COMPLETING":
			j.runs(there)
		}
	}
}

// gate is how a job was kept at the gate, by looks.
type gate struct {
	deadS  float64 // how long the bridge had been dead, s, at most
	idleS  float64 // in sum, while a GPU that it may use was idle and in service
	idleAt float64 // the last look, if such a GPU was idle then
}

// note adds a look at which the job is pending: gated is true if only the bridge's gate keeps it, or room; dead is
// since when the bridge has been, 0 = it lives.
func (h *gate) note(at, dead float64, gated, idle bool) {
	if gated && dead > 0 {
		h.deadS = max(h.deadS, at-dead)
	}
	if !gated || !idle {
		h.idleAt = 0
		return
	}
	h.idleS += at - cmp.Or(h.idleAt, at)
	h.idleAt = at
}

// tooLongS is how much too long the job was kept, s: after the bridge was dead for a lease, and next to an idle GPU for
// longer than maxDelayS in all.
func (h *gate) tooLongS(leaseS, maxDelayS float64) float64 {
	return max(h.deadS-leaseS, h.idleS-maxDelayS, 0)
}

// runs notes which jobs are with the job at a look.
func (j *job) runs(there map[string]map[string]*job) {
	for _, p := range j.Places {
		for _, other := range there[p] {
			if other != j {
				j.company[other] = true
				j.inUse = j.inUse || j.GPUs > 0 && j.onGPU() && j.State == "RUNNING" && other.State == "RUNNING"
			}
		}
	}
	j.shared = j.shared || strings.Contains(j.Gres, "mps") && !strings.HasSuffix(j.Gres, ":100")
}
