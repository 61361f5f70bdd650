package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

const (
	hookProgram    = "slurmbridge-hook"
	controlProgram = "nvidia-cuda-mps-control"
	serverProgram  = "nvidia-cuda-mps-server"
)

// clean fails the test unless the node is in service and nothing of the jobs is left on it: no process, no socket, no
// job's file.
func (c *cards) clean() {
	c.t.Helper()
	left := func() (out []string) {
		for _, pid := range must.Get(c.Processes(hookProgram, controlProgram, serverProgram))(c.t) {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			out = append(out, strings.ReplaceAll(string(line), "\x00", " "))
		}
		_ = filepath.WalkDir(c.Path("node"), func(path string, e fs.DirEntry, err error) error {
			if err == nil && (e.Type()&fs.ModeSocket != 0 || strings.HasSuffix(path, ".json") &&
				filepath.Base(path) != "gpus.json") {
				out = append(out, path)
			}
			return nil
		})
		return out
	}
	if !c.Wait(c.t.Context(), time.Minute, func() bool { return len(left()) == 0 }) {
		c.t.Errorf("left on the node: %s", strings.Join(left(), "\n"))
	}
	c.inService()
}

// chaos kills processes of hooks, MPS and the agent, which then starts anew, at random until stop is called, which
// tells how many it were of each.
func (c *cards) chaos(rnd *rand.Rand, everyS float64) (stop func() map[string]int) {
	faults := []string{
		"hook killed", "hook killed", "hook killed", "agent killed", "MPS control daemon killed", "MPS server killed",
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	done, killed := make(chan struct{}), map[string]int{}
	go func() {
		defer close(done)
		for cluster.Sleep(ctx, 2*everyS*rnd.Float64()) {
			fault := faults[rnd.IntN(len(faults))]
			mend, err := c.Break(fault, 0)
			if err = errors.Join(err, mend()); err == nil {
				killed[fault]++
			} else if !errors.Is(err, cluster.ErrNothing) {
				c.t.Error(err)
			}
		}
	}()
	return func() map[string]int { cancel(); <-done; return killed }
}

// Short jobs run on one node while hooks, agent, MPS daemons and servers are killed at random: no job is lost, none has
// no record, the node stays in service and is clean afterwards. SLURMBRIDGE_SLOW=1 plays 200 jobs, SLURMBRIDGE_CHAOS is
// another number.
func TestChaosOnANode(t *testing.T) {
	slurmtest.OfOneRelease(t)
	t.Parallel()
	n := 30
	if os.Getenv("SLURMBRIDGE_SLOW") != "" {
		n = 200
	}
	if v, err := strconv.Atoi(os.Getenv("SLURMBRIDGE_CHAOS")); err == nil {
		n = v
	}
	c := newCards(t, cluster.Setup{Agents: true, Adjust: func(o *slurmtest.Options) {
		o.CPUs, o.Scheduler, o.Extra = 32, "sched_interval=1,bf_interval=1,sched_min_interval=0", []string{"JobRequeue=1"}
	}})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	stop := c.chaos(rand.New(rand.NewPCG(seed, 0)), 0.25)
	script := fmt.Sprintf("GPUSIM_STATE=%s %s run alexnet --mem-mib 100 --duration-scale 0.04 >/dev/null 2>&1\necho "+
		"ran >>%s\nexit 0\n",
		c.State(), c.Bin("gpusim"), c.Path("out", "ran"))
	start := time.Now()
	must.Get(c.Submit(t.Context(), ann, script, "--gres=mps:10", "--array=1-"+strconv.Itoa(n), "--output=/dev/null"))(t)
	var queue string
	ended := c.Wait(t.Context(), time.Duration(n)*2*time.Second, func() (over bool) {
		var err error
		queue, err = c.Run(t.Context(), "squeue", "-h", "-o", "%T %r")
		return err == nil && strings.TrimSpace(queue) == ""
	})
	t.Logf("%d jobs in %v; killed: %v", n, time.Since(start).Round(time.Second), stop())
	if !ended {
		t.Fatalf("jobs are left: %s", queue)
	}
	text, err := os.ReadFile(c.Path("out", "ran"))
	if ran := strings.Count(string(text), "ran\n"); err != nil || ran != n {
		t.Errorf("%d of %d jobs ran (%v)", ran, n, err)
	}
	records := func() int { return len(must.Get(filepath.Glob(c.Path("spool-agent", "*.json")))(t)) }
	c.until(fmt.Sprint(n, " records"), func() bool { return records() >= n })
	c.clean()
}
