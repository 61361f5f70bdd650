package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurmtest"
)

// owner submits the jobs, as in the thesis one user for all.
const owner = "nobody"

// scheduler is the same for both runs: Slurm looks at the queue often, so that
// its own pauses weigh little on the scaled time.
const scheduler = "bf_interval=2,sched_interval=5"

// stack is a private cluster with a simulated GPU, and for the bridged run with
// hooks, agent and bridge.
type stack struct {
	*slurmtest.Cluster
	o     options
	url   string
	procs []*exec.Cmd
	// thread takes what must run on one thread that lives as long as the stack.
	thread chan func()
}

// bridged is what the bridge says of its run.
type bridged struct {
	groups      int
	skews       []float64
	addedDelayS float64
	slurm       string
}

func (s *stack) state() string { return s.Path("sim", "state") }
func (s *stack) bin(name string) string {
	return s.Path("bin", name)
}

// prepare copies the programs where every user may run them, makes the GPU and
// writes the hooks.
func (s *stack) prepare(c *slurmtest.Cluster, share bool) error {
	s.Cluster = c
	for _, d := range []string{"bin", "sim", "node", "spool-agent"} {
		if err := os.MkdirAll(c.Path(d), 0o755); err != nil {
			return err
		}
	}
	for _, f := range []string{"slurmbridge", "slurmbridge-hook", "gpuprof", "gpusim", "lib/libnvidia-ml.so.1"} {
		body, err := os.ReadFile(filepath.Join(s.o.build, f))
		if err != nil {
			return fmt.Errorf("%w; run make build", err)
		}
		if err := writeProgram(s.bin(filepath.Base(f)), body); err != nil {
			return err
		}
	}
	for _, name := range []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"} {
		if err := os.Symlink("gpusim", s.bin(name)); err != nil {
			return err
		}
	}
	if out, err := exec.Command(s.bin("gpusim"), "init", "--state", s.state(), "--scale", fmt.Sprint(s.o.scale)).CombinedOutput(); err != nil {
		return fmt.Errorf("gpusim init: %w: %s", err, out)
	}
	if !share {
		return nil
	}
	node := fmt.Sprintf("run_dir: %s\nmps_control: %s\nmps_env: [GPUSIM_STATE=%s]\n", c.Path("node"), s.bin("nvidia-cuda-mps-control"), s.state())
	if err := os.WriteFile(c.Path("node.yaml"), []byte(node), 0o644); err != nil {
		return err
	}
	for _, k := range []string{"prolog", "epilog", "taskprolog"} {
		script := fmt.Sprintf("#!/bin/sh\nexec %s --settings %s %s\n", s.bin("slurmbridge-hook"), c.Path("node.yaml"), k)
		if err := writeProgram(s.bin(k), []byte(script)); err != nil {
			return err
		}
	}
	wake := fmt.Sprintf("#!/bin/sh\necho end >> %s\nexit 0\n", c.WakeFile)
	if err := writeProgram(s.bin("epilog-slurmctld"), []byte(wake)); err != nil {
		return err
	}
	c.Options.Prolog, c.Options.Epilog = s.bin("prolog"), s.bin("epilog")
	c.Options.TaskProlog, c.Options.EpilogSlurmctld = s.bin("taskprolog"), s.bin("epilog-slurmctld")
	return nil
}

// writeProgram writes a file to be run. No child may be forked meanwhile: it would
// hold the file open for writing until it runs its own program, and a file that
// is can't be run ("text file busy").
func writeProgram(path string, body []byte) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, body, 0o755)
}

// spawn starts a daemon of ours, as a user ("" = root), with its output in the
// cluster's logs.
func (s *stack) spawn(name, as string, args ...string) error {
	cmd, err := s.Command(context.Background(), as, s.bin(name), args...)
	if err != nil {
		return err
	}
	log, err := os.OpenFile(s.Path("log", name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(cmd.Env, "GPUSIM_STATE="+s.state())
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	if err := s.onThread(cmd.Start); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	s.procs = append(s.procs, cmd)
	return nil
}

// onThread calls f on the stack's own thread: Pdeathsig means the death of the
// thread that started a child, and Go's threads come and go.
func (s *stack) onThread(f func() error) error {
	if s.thread == nil {
		s.thread = make(chan func())
		go func(calls <-chan func()) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for call := range calls {
				call()
			}
		}(s.thread)
	}
	done := make(chan error, 1)
	s.thread <- func() { done <- f() }
	return <-done
}

// bridge imports the profiles and starts bridge and agent.
func (s *stack) bridge(ctx context.Context) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	s.url = "http://127.0.0.1:" + port
	conf := s.Path("slurmbridge.yaml")
	text := fmt.Sprintf("slurm_conf: %s\ngate_file: %s\nwake_file: %s\ndatabase: %s\nlisten: 127.0.0.1:%s\nmunge_socket: %s\npolicy: dqn\nlease: 30s\npoll: 10s\n",
		s.Conf(), s.GateFile, s.WakeFile, s.Path("run", "slurmbridge.db"), port, s.MungeSocket)
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		return err
	}
	if !s.o.cold {
		file := s.Path("profiles.json")
		if err := writeProfiles(file, s.o.scale); err != nil {
			return err
		}
		// The documented command, as the user that the bridge runs as.
		if out, err := s.RunAs(ctx, "slurm", s.bin("slurmbridge"), "profiles", "import", "--config", conf, file); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	if err := s.spawn("slurmbridge", "slurm", "serve", "--config", conf); err != nil {
		return err
	}
	// Samples as dense as one a GPU second.
	period := time.Duration(float64(time.Second) / s.o.scale)
	if err := s.spawn("gpuprof", "", "serve", "--run-dir", s.Path("node"), "--spool", s.Path("spool-agent"), "--controller", s.url,
		"--nvml-library", s.bin("libnvidia-ml.so.1"), "--period", max(period, 20*time.Millisecond).String(), "--node", "n1",
		"--listen", "", "--munge-socket", s.MungeSocket); err != nil {
		return err
	}
	if !slurmtest.Wait(ctx, 20*time.Second, func() bool {
		resp, err := http.Get(s.url + "/-/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		_, gerr := os.Stat(s.GateFile)
		return resp.StatusCode == http.StatusOK && gerr == nil
	}) {
		return errors.New("the bridge does not become ready")
	}
	return nil
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}

// writeProfiles writes the eleven applications as the cluster's clock sees them:
// scale GPU seconds pass in one of its seconds.
func writeProfiles(path string, scale float64) error {
	var out []*rlcore.Profile
	for _, n := range apps.Names() {
		p, _ := apps.ByName(n)
		p.DurationS, p.PeriodS, p.StepS = p.DurationS/scale, p.PeriodS/scale, p.StepS/scale
		out = append(out, p)
	}
	body, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return os.WriteFile(path, body, 0o644)
}

func (s *stack) stop() {
	for _, p := range slices.Backward(s.procs) {
		_ = p.Process.Signal(syscall.SIGTERM)
		done := make(chan struct{})
		go func() { _ = p.Wait(); close(done) }()
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			_ = p.Process.Kill()
		}
	}
	if s.thread != nil {
		close(s.thread)
		s.thread = nil
	}
}

// measure runs the workload once.
func measure(ctx context.Context, o options, names []string, share bool) (res *result, err error) {
	s := &stack{o: o}
	opts := slurmtest.Options{Scheduler: scheduler, Prepare: func(c *slurmtest.Cluster) error { return s.prepare(c, share) }}
	if share {
		opts.Lua = o.lua
	}
	c, err := slurmtest.Start(ctx, opts)
	if err != nil {
		return nil, err
	}
	s.Cluster = c
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = fmt.Errorf("%w%s", err, c.Logs(6))
		}
		s.stop()
		if o.keep && share {
			fmt.Println("kept:", c.Dir)
			return
		}
		err = errors.Join(err, c.Close())
	}()
	title := "whole GPUs"
	if share {
		title = "bridged"
		if err := s.bridge(ctx); err != nil {
			return nil, err
		}
	}
	u, err := user.Lookup(owner)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return nil, err
	}
	reports := c.Path("reports")
	if err := os.MkdirAll(reports, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chown(reports, uid, -1); err != nil {
		return nil, err
	}
	before, err := s.gpu()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	var ids []string
	for _, app := range names {
		gres := "--gres=gpu:titanxp:1"
		if share {
			gres = "--gres=gpu:shared"
		}
		script := fmt.Sprintf("#!/bin/sh\nexport GPUSIM_STATE=%s\n%s run %s --report %s/$SLURM_JOB_ID.json\nrc=$?\ndate +%%s.%%N > %s/$SLURM_JOB_ID.end\nexit $rc\n",
			s.state(), s.bin("gpusim"), app, reports, reports)
		id, err := c.Submit(ctx, owner, script, gres, "--comment=app="+app, "--job-name="+app)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	if err := s.watch(ctx, title, ids); err != nil {
		return nil, err
	}
	after, err := s.gpu()
	if err != nil {
		return nil, err
	}
	res = &result{OOM: int(after.OOM - before.OOM)}
	var last time.Time
	for _, id := range ids {
		end, rerr := readTime(filepath.Join(reports, id+".end"))
		var r struct {
			Status string  `json:"status"`
			GPUS   float64 `json:"gpu_s"`
			SoloS  float64 `json:"solo_s"`
		}
		body, berr := os.ReadFile(filepath.Join(reports, id+".json"))
		if berr == nil {
			berr = json.Unmarshal(body, &r)
		}
		if rerr != nil || berr != nil || r.Status != "finished" {
			res.JobsFailed++
			continue
		}
		res.JobsCompleted++
		res.MeanTurnaroundS += end.Sub(start).Seconds() * o.scale
		if r.SoloS > 0 {
			res.slowdowns = append(res.slowdowns, r.GPUS/r.SoloS)
		}
		if end.After(last) {
			last = end
		}
	}
	if res.JobsCompleted == 0 {
		return nil, errors.New("no job completed")
	}
	res.MeanTurnaroundS /= float64(res.JobsCompleted)
	res.MakespanS = last.Sub(start).Seconds() * o.scale
	res.GPUUtil = (after.BusyS - before.BusyS) / res.MakespanS
	res.MemUtil = (after.MemMiBS - before.MemMiBS) / after.MemTotalMiB / res.MakespanS
	if share {
		if res.bridge, err = s.ask(ctx); err == nil && s.o.after != nil {
			err = s.o.after(ctx, s)
		}
	}
	return res, err
}

func readTime(path string) (time.Time, error) {
	body, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, err
	}
	sec, frac, _ := strings.Cut(strings.TrimSpace(string(body)), ".")
	s, err := strconv.ParseInt(sec, 10, 64)
	if err != nil {
		return time.Time{}, err
	}
	ns, err := strconv.ParseInt(frac, 10, 64)
	return time.Unix(s, ns), err
}

// watch shows progress until every job has ended.
func (s *stack) watch(ctx context.Context, title string, ids []string) error {
	p := newProgress(title, len(ids))
	end := time.Now().Add(10 * time.Minute)
	for {
		out, err := s.Run(ctx, "squeue", "-h", "-u", owner, "-o", "%T")
		if err != nil {
			return err
		}
		left, running := 0, 0
		for _, st := range strings.Fields(out) {
			left++
			if st == "RUNNING" {
				running++
			}
		}
		note := ""
		if g, err := s.gpu(); err == nil {
			note = fmt.Sprintf("(GPU %3.0f %%, %5.0f MiB)", 100*g.GPU, g.MemMiB)
		}
		p.at(len(ids)-left, running, note)
		if left == 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%d jobs have not ended after 10 minutes", left)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// counters are what the simulator counted.
type counters struct {
	GPU         float64 `json:"gpu"`
	MemMiB      float64 `json:"mem_mib"`
	MemTotalMiB float64 `json:"mem_total_mib"`
	BusyS       float64 `json:"busy_s"`
	MemMiBS     float64 `json:"mem_mib_s"`
	OOM         uint64  `json:"oom"`
}

func (s *stack) gpu() (counters, error) {
	out, err := exec.Command(s.bin("gpusim"), "smi", "--json", "--state", s.state()).Output()
	if err != nil {
		return counters{}, fmt.Errorf("gpusim smi: %w", err)
	}
	var all struct {
		GPUs []counters `json:"gpus"`
	}
	if err := json.Unmarshal(out, &all); err != nil {
		return counters{}, fmt.Errorf("gpusim smi: %w", err)
	}
	if len(all.GPUs) != 1 {
		return counters{}, fmt.Errorf("gpusim smi shows %d GPUs", len(all.GPUs))
	}
	return all.GPUs[0], nil
}

// ask gets the bridge's own account, once the last records are in.
func (s *stack) ask(ctx context.Context) (*bridged, error) {
	b := &bridged{}
	var groups []struct {
		Members  []json.RawMessage `json:"members"`
		State    string            `json:"state"`
		Kind     string            `json:"kind"`
		SkewS    float64           `json:"skew_s"`
		Complete bool              `json:"complete"`
	}
	slurmtest.Wait(ctx, 5*time.Second, func() bool {
		if err := s.get("/v1/groups", &groups); err != nil {
			return false
		}
		for _, g := range groups {
			if len(g.Members) > 1 && !g.Complete && g.Kind != "next" {
				return false
			}
		}
		return true
	})
	for _, g := range groups {
		// Whoever joins running jobs makes a group with them.
		if g.Kind == "join" || len(g.Members) > 1 {
			b.groups++
		}
		if len(g.Members) > 1 && g.Complete {
			b.skews = append(b.skews, g.SkewS)
		}
	}
	var st struct {
		Delay float64 `json:"added_delay_max_s"`
		Slurm string  `json:"slurm"`
	}
	if err := s.get("/v1/status", &st); err != nil {
		return nil, err
	}
	b.addedDelayS, b.slurm = st.Delay, st.Slurm
	return b, nil
}

func (s *stack) get(path string, into any) error {
	resp, err := http.Get(s.url + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, body)
	}
	return json.Unmarshal(body, into)
}

func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Clone(v)
	slices.Sort(s)
	return s[min(len(s)-1, int(q*float64(len(s))))]
}
