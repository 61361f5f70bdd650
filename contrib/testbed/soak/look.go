package soak

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// look is what Slurm says at one moment. Times are Unix seconds.
type look struct {
	At    float64
	Jobs  []seenJob
	Nodes map[string]seenNode // by name; a node is listed for each of its partitions
}

// seenJob is a job as Slurm shows it.
type seenJob struct {
	Key, ID    string // ID is Slurm's number, of an array's task NUMBER_TASK
	State      string
	Reason     string
	Exit       string
	Restarts   int
	Start, End float64 // NaN = none
	Dependency string
	// Place is node and GPU, "" where it runs nowhere; Shares what it takes there.
	Place  string
	Shares string
}

// seenNode is whether Slurm would start a job on a node, by partition.
type seenNode map[string]bool

// parseJobs reads `scontrol -d -o show jobs`. Jobs that are none of the campaign's, and an
// array's tasks that have no job of their own yet, are left out.
func parseJobs(text string) []seenJob {
	var out []seenJob
	for line := range strings.Lines(text) {
		f := map[string]string{}
		for _, w := range strings.Fields(line) {
			// What comes first is Slurm's own: texts that users write come last.
			if k, v, ok := strings.Cut(w, "="); ok {
				if _, twice := f[k]; !twice {
					f[k] = v
				}
			}
		}
		if !strings.HasPrefix(f["JobName"], "life") {
			continue
		}
		j := seenJob{
			Key: f["JobName"], ID: f["JobId"], State: f["JobState"], Reason: f["Reason"], Exit: f["ExitCode"],
			Start: slurmTime(f["StartTime"]), End: slurmTime(f["EndTime"]), Dependency: f["Dependency"], Shares: f["TresPerNode"],
		}
		j.Restarts, _ = strconv.Atoi(f["Restarts"])
		if task, of := f["ArrayTaskId"]; of {
			if _, err := strconv.Atoi(task); err != nil {
				continue
			}
			j.Key, j.ID = taskKey(j.Key, task), f["ArrayJobId"]+"_"+task
		}
		if node := f["NodeList"]; node != "" && node != "(null)" && j.State != "PENDING" {
			j.Place = node
			if _, index, ok := strings.Cut(f["GRES"], "(IDX:"); ok {
				index, _, _ = strings.Cut(index, ")")
				j.Place += ":" + index
			}
		}
		out = append(out, j)
	}
	return out
}

// parseNodes reads `sinfo -h -N -o %N|%R|%a|%T`.
func parseNodes(text string) map[string]seenNode {
	out := map[string]seenNode{}
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), "|")
		if len(f) != 4 {
			continue
		}
		if out[f[0]] == nil {
			out[f[0]] = seenNode{}
		}
		out[f[0]][f[1]] = f[2] == "up" && slices.Contains([]string{"idle", "mixed", "allocated", "completing"}, f[3])
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

// lookTimeout is how long Slurm has to answer; if it takes longer, no job starts there either.
const lookTimeout = 5 * time.Second

// see looks once.
func see(ctx context.Context, c *slurmtest.Cluster) (*look, error) {
	ctx, stop := context.WithTimeout(ctx, lookTimeout)
	defer stop()
	at := now()
	jobs, err := c.Run(ctx, "scontrol", "-d", "-o", "show", "jobs")
	if err != nil {
		return nil, err
	}
	nodes, err := c.Run(ctx, "sinfo", "-h", "-N", "-o", "%N|%R|%a|%T")
	if err != nil {
		return nil, err
	}
	return &look{At: at, Jobs: parseJobs(jobs), Nodes: parseNodes(nodes)}, nil
}

// now is this moment in Unix seconds.
func now() float64 { return float64(time.Now().UnixMilli()) / 1000 }

// over reports whether a job has ended for good.
func over(state string) bool {
	return !slices.Contains([]string{"", "PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "STAGE_OUT"}, state)
}
