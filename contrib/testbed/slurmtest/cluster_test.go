package slurmtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// prompt is a scheduler that looks at every submission at once.
const prompt = "batch_sched_delay=0,sched_min_interval=0,sched_interval=2"

// orphan in the environment turns the test binary into a process that starts a
// cluster and a job and then waits to be killed.
const orphan = "SLURMTEST_ORPHAN"

func TestMain(m *testing.M) {
	if os.Getenv(orphan) != "" {
		ctx := context.Background()
		c, err := Start(ctx, Options{Scheduler: prompt, Root: os.Getenv(rootVariable)})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		id, err := c.Submit(ctx, "nobody", "exec sleep 1000")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if state, ok := c.WaitState(ctx, 30*time.Second, id, "RUNNING"); !ok {
			fmt.Fprintln(os.Stderr, "the job is", state)
			os.Exit(1)
		}
		fmt.Println(c.Dir)
		select {}
	}
	goleak.VerifyTestMain(m)
}

func (c *Cluster) submit(t *testing.T, as, script string, args ...string) string {
	t.Helper()
	return must.Get(c.Submit(t.Context(), as, script, args...))(t)
}

func (c *Cluster) reaches(t *testing.T, id string, states ...string) {
	t.Helper()
	if s, ok := c.WaitState(t.Context(), 40*time.Second, id, states...); !ok {
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
	c := New(t, Options{Nodes: 2, Scheduler: prompt})
	ctx := t.Context()
	whole := c.submit(t, "nobody", "sleep 1000", "--nodelist=n1", "--gres=gpu:titanxp:1")
	c.reaches(t, whole, "RUNNING")
	slurm := must.Get(IDs("slurm"))(t)
	info := must.Get(os.Stat(fmt.Sprintf("/proc/%d", c.daemons[controller].Process.Pid)))(t)
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != slurm.Uid {
		t.Errorf("slurmctld runs as user %d, want %d", uid, slurm.Uid)
	}
	if out, err := c.Run(ctx, "sbatch", "--version"); err != nil ||
		!strings.HasSuffix(strings.TrimSpace(out), " "+c.Release) {
		t.Errorf("release %q of %q, %v", c.Release, out, err)
	}
	c.KillNode(0)
	must.OK(t, c.StartNode(0))
	if err := c.StartNode(0); err == nil {
		t.Error("a node is started twice")
	}
	c.StopController()
	must.OK(t, c.StartController(ctx))
	c.KillController()
	if _, err := c.Run(ctx, "timeout", "1", "scontrol", "ping"); err == nil {
		t.Error("a killed slurmctld answers")
	}
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
	if err := c.StartController(ctx); err == nil {
		t.Error("a closed cluster's slurmctld starts")
	}
}

// TestKilledStarter kills the process that started a cluster: the daemons go with
// it, the job when the folder is reaped.
func TestKilledStarter(t *testing.T) {
	t.Parallel()
	Require(t)
	self := must.Get(os.Executable())(t)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), orphan+"=1")
	cmd.Stderr = os.Stderr
	out := must.Get(cmd.StdoutPipe())(t)
	must.OK(t, cmd.Start())
	line := make([]byte, 256)
	n, err := out.Read(line)
	dir := strings.TrimSpace(string(line[:n]))
	if err != nil || !strings.HasPrefix(filepath.Base(dir), prefix) {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("%q %v", dir, err)
	}
	if err := Reap(dir); !errors.Is(err, errInUse) {
		t.Errorf("a running cluster is reaped: %v", err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	daemons := func() int {
		n := 0
		pids, _ := members(dir)
		for _, pid := range pids {
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
			if s := strings.TrimSpace(string(name)); s == "slurmctld" || s == "slurmd" || s == "munged" {
				n++
			}
		}
		return n
	}
	if !Wait(t.Context(), 10*time.Second, func() bool { return daemons() == 0 }) {
		t.Errorf("%d daemons have outlived their starter", daemons())
	}
	// Another cluster that starts now may be reaping it, or have reaped it already.
	if !Wait(t.Context(), 20*time.Second, func() bool {
		err = Reap(dir)
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
	must.Equal(t, Reap(dir) != nil, true, "a folder that is no cluster's is left alone")
	must.Get(os.Stat(file))(t)
}

// A cluster that is closed takes no other child of this process with it, though each
// has the files of all clusters open until it runs its program.
func TestCloseKeepsOffOthersChildren(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := must.Get(os.Create(filepath.Join(dir, owner)))(t)
	defer f.Close()
	children := make(chan error)
	go func() {
		var err error
		for i := 0; i < 300 && err == nil; i++ {
			err = exec.Command("true").Run()
		}
		children <- err
	}()
	for {
		select {
		case err := <-children:
			must.OK(t, err)
			return
		default:
			must.OK(t, kill(dir))
		}
	}
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
	a := must.Get(freePorts(20))(t)
	b := must.Get(freePorts(20))(t)
	seen := map[int]bool{}
	for _, p := range append(a, b...) {
		must.Equal(t, seen[p.number], false, "port %d is given twice", p.number)
		seen[p.number] = true
		p.release()
	}
}
