package slurmtest

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func (c *Cluster) submit(t *testing.T, as, script string, args ...string) string {
	t.Helper()
	return must.Get(c.Submit(t.Context(), as, script, args...))(t)
}

func (c *Cluster) reaches(t *testing.T, id string, states ...string) {
	t.Helper()
	if s, ok := c.WaitState(t.Context(), time.Minute, id, states...); !ok {
		t.Fatalf("job %s is %s, want %v", id, s, states)
	}
}

// left fails the test unless nothing is left of a cluster: no process, no mount and no folder.
func left(t *testing.T, dir string) {
	t.Helper()
	must.Equal(t, must.Get(members(dir))(t), nil, "processes")
	for line := range strings.Lines(string(must.Get(os.ReadFile("/proc/self/mountinfo"))(t))) {
		must.Equal(t, strings.Contains(strings.Fields(line)[4], dir), false, line)
	}
	_, err := os.Stat(dir)
	must.Equal(t, errors.Is(err, os.ErrNotExist), true, "the folder: %v", err)
}

// Daemons run as Slurm's user, come and go while a job runs on, and are gone at the end, with all that jobs have left.
func TestACluster(t *testing.T) {
	t.Parallel()
	c := New(t, Options{Nodes: 2, Scheduler: Prompt})
	ctx := t.Context()
	whole := c.submit(t, "nobody", "echo runs; sleep 1000", "--nodelist=n1", "--gres=gpu:titanxp:1")
	c.reaches(t, whole, "RUNNING")
	// A slurmd that is killed before a job's script runs takes the job's step with it.
	must.Equal(t, c.Wait(ctx, time.Minute, func() bool {
		out, _ := os.ReadFile(c.Path("out", whole+".out"))
		return string(out) == "runs\n"
	}), true, "the job's script runs")
	slurm := must.Get(IDs("slurm"))(t)
	info := must.Get(os.Stat(fmt.Sprintf("/proc/%d", c.daemons[controller].Process.Pid)))(t)
	must.Equal(t, info.Sys().(*syscall.Stat_t).Uid, slurm.Uid, "slurmctld's user")
	if out, err := c.Run(ctx, "sbatch", "--version"); err != nil ||
		!strings.HasSuffix(strings.TrimSpace(out), " "+c.Release) {
		t.Errorf("release %q of %q, %v", c.Release, out, err)
	}
	c.KillNode(0)
	must.OK(t, c.StartNode(0))
	must.Fail(t, c.StartNode(0), "", "a node is started twice")
	c.StopController()
	must.OK(t, c.StartController(ctx))
	c.KillController()
	must.Fail(t, must.Err(c.Run(ctx, "timeout", "1", "scontrol", "ping")), "", "a killed slurmctld")
	must.OK(t, c.StartController(ctx))
	must.OK(t, c.WaitNodes(ctx, 60*time.Second))
	c.reaches(t, whole, "RUNNING")
	// A job's process without a living parent and without an environment.
	stray := c.submit(t, "games", "setsid env -i /bin/sleep 4711 & sleep 0.2", "--nodelist=n2", "--gres=mps:50")
	c.reaches(t, stray, "COMPLETED", "COMPLETING", "FAILED")
	for range 2 {
		must.OK(t, c.Close())
	}
	left(t, c.Dir)
	must.Fail(t, c.StartController(ctx), "", "a closed cluster's slurmctld")
}

// Slurm powers an idle node down, and up for a job.
func TestPowerSaving(t *testing.T) {
	t.Parallel()
	c := New(t, Options{PowerSaving: true, Scheduler: Prompt, Extra: []string{"SuspendTime=1"}})
	is := func(state string) func() bool {
		return func() bool {
			out, err := c.Run(t.Context(), "sinfo", "-h", "-o", "%t")
			return err == nil && strings.TrimSpace(out) == state
		}
	}
	must.Equal(t, c.Wait(t.Context(), time.Minute, is("idle~")), true, "the node is powered down")
	must.Equal(t, c.Wait(t.Context(), time.Minute, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.daemons["slurmd-n1"] == nil
	}), true, "its slurmd has ended")
	c.reaches(t, c.submit(t, "nobody", "true"), "COMPLETED")
}

// Where the process that started a cluster is killed, the daemons go with it, and the job when the folder is reaped.
func TestKilledStarter(t *testing.T) {
	const starter = "SLURMTEST_STARTER"
	if os.Getenv(starter) != "" {
		c := New(t, Options{Scheduler: Prompt})
		c.reaches(t, c.submit(t, "nobody", "exec sleep 1000"), "RUNNING")
		fmt.Println(c.Dir)
		select {}
	}
	t.Parallel()
	Require(t)
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestKilledStarter$")
	cmd.Env = append(os.Environ(), starter+"=1")
	cmd.Stderr = os.Stderr
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	dir := strings.TrimSpace(line)
	running := reap(dir)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if err != nil || !strings.HasPrefix(filepath.Base(dir), prefix) {
		t.Fatalf("%q %v", dir, err)
	}
	must.Equal(t, errors.Is(running, errInUse), true, "a running cluster is left alone: %v", running)
	daemons := func() (n int) {
		pids, _ := members(dir)
		for _, pid := range pids {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			if slices.Contains([]string{"slurmctld", "slurmd", "munged"}, strings.TrimSpace(string(name))) {
				n++
			}
		}
		return n
	}
	if !Wait(t.Context(), time.Minute, func() bool { return daemons() == 0 }) {
		t.Errorf("%d daemons have outlived their starter", daemons())
	}
	// Another cluster that starts now may be reaping it, or have reaped it already.
	if !Wait(t.Context(), time.Minute, func() bool {
		err = reap(dir)
		return !errors.Is(err, errInUse)
	}) || err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	left(t, dir)
}

func TestReapKeepsOffOthersFolders(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "precious")
	must.OK(t, os.WriteFile(file, nil, 0o600))
	must.Equal(t, reap(dir) != nil, true, "a folder that is no cluster's is left alone")
	must.Get(os.Stat(file))(t)
}

func TestFields(t *testing.T) {
	f := Fields("JobId=7 JobName=x JobState=COMPLETED\n   JobState=PENDING Reason=Dependency " +
		"Dependency=after:3(unfulfilled)\n" +
		"   Comment=JobState=FAILED a=b \n     Nodes=n1 CPU_IDs=0 Mem=100 GRES=mps:60(IDX:0)\n\n")
	want := map[string]string{
		"JobId": "7", "JobName": "x JobState=COMPLETED", "JobState": "PENDING", "Reason": "Dependency",
		"Dependency": "after:3(unfulfilled)",
		"Comment":    "JobState=FAILED a=b", "Nodes": "n1", "CPU_IDs": "0", "Mem": "100", "GRES": "mps:60(IDX:0)",
	}
	must.Equal(t, f, want)
}

func TestPortsAreNotGivenTwice(t *testing.T) {
	seen := map[string]bool{}
	for range 40 {
		var c Cluster
		port := must.Get(c.FreePort())(t)
		defer c.claims[0].Close()
		must.Equal(t, seen[port], false, "port %s is given twice", port)
		seen[port] = true
	}
}
