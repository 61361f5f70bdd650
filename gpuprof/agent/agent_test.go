package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

// programs is where the simulated GPU's programs lie, made once.
var (
	programs = sync.OnceValues(func() (dir string, err error) {
		builtDir, err = os.MkdirTemp("", "agent-test")
		return builtDir, errors.Join(err, built.Into(builtDir, "gpusim", built.Library))
	})
	builtDir string
)

func TestMain(m *testing.M) {
	status := m.Run()
	if builtDir != "" {
		os.RemoveAll(builtDir)
	}
	os.Exit(status)
}

// simulated makes simulated GPUs whose NVML the real binding loads.
func simulated(t *testing.T, scale string, more ...string) (lib *nvml.Library, program string) {
	t.Helper()
	dir := must.Get(programs())(t)
	program = filepath.Join(dir, "gpusim")
	state := filepath.Join(t.TempDir(), "state")
	if out, err := exec.Command(program, append([]string{"init", "--state", state, "--gpus", "2", "--scale", scale},
		more...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv("GPUSIM_STATE", state)
	lib = must.Get(nvml.Open(filepath.Join(dir, "libnvidia-ml.so.1")))(t)
	t.Cleanup(func() {
		if err := lib.Close(); err != nil {
			t.Error(err)
		}
	})
	return lib, program
}

type kept struct {
	mu    sync.Mutex
	recs  []*gpuprof.Record
	fail  bool
	tries int
}

func (k *kept) attempts() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tries
}

func (k *kept) keep(r *gpuprof.Record) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tries++
	if k.fail {
		return errors.New("disk full")
	}
	k.recs = append(k.recs, r)
	return nil
}

func (k *kept) wait(t *testing.T, n int) []*gpuprof.Record {
	t.Helper()
	for range 30000 {
		k.mu.Lock()
		if len(k.recs) >= n {
			defer k.mu.Unlock()
			return k.recs
		}
		k.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not %d records", n)
	return nil
}

func startAgent(t *testing.T, a *Agent) (stop func()) {
	t.Helper()
	a.Node, a.Log = "n1", slog.New(slog.DiscardHandler)
	must.OK(t, a.Start())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = a.Run(ctx) }()
	return func() { cancel(); <-done }
}

func begin(t *testing.T, dir prolog.Dir, id int64, gpu int) {
	t.Helper()
	must.OK(t, dir.Begin(&prolog.Job{
		JobID: id, UID: 1000, User: "ann", GPUs: []int{gpu}, UUIDs: uuids(t, dir, gpu), Percent: 50, Start: time.Now(),
	}))
}

// uuids are the cards at these places of the agent's list, as a prolog finds them there.
func uuids(t must.T, dir prolog.Dir, gpus ...int) (out []string) {
	t.Helper()
	cards := must.Get(dir.Cards(""))(t)
	for _, i := range gpus {
		if i < len(cards) {
			out = append(out, cards[i].UUID)
		} else {
			out = append(out, "")
		}
	}
	return out
}

func end(t *testing.T, dir prolog.Dir, id int64) {
	t.Helper()
	must.Get(dir.End(id, time.Now(), "0:0"))(t)
}

func TestRecordOfASoloRun(t *testing.T) {
	lib, _ := simulated(t, "20")
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir, k := prolog.Dir(t.TempDir()), &kept{}
	// A busy machine may hold the agent up for a second: what it reads holds for twenty
	// periods.
	defer startAgent(t, &Agent{
		Dir: dir, Devices: lib.Devices(), Period: 60 * time.Millisecond, Keep: k.keep,
		Now: time.Now,
	})()
	if _, err := os.Stat(filepath.Join(string(dir), "gpus.json")); err != nil {
		t.Error(err)
	}
	// Neither the time until the application computes nor, in a process of its own, its
	// start counts: on a busy machine each tenth of a second is two of the GPU's.
	hoomd, _ := apps.ByName("hoomd")
	ran := make(chan error, 1)
	go func() { _, err := app.Run(t.Context(), app.Config{Profile: hoomd}); ran <- err }()
	eventually(t, "the application's use", func() bool {
		s, err := lib.Devices()[0].Sample()
		return err == nil && s.GPU > 0.3
	})
	begin(t, dir, 7, 0)
	must.OK(t, <-ran)
	end(t, dir, 7)
	r := k.wait(t, 1)[0]
	must.OK(t, r.Validate())
	// hoomd takes 60 GPU s, 0.7 of the GPU on average and 760 MiB at its peak.
	if !r.Solo() || math.Abs(20*r.DurationS()/60-1) > 0.2 {
		t.Errorf("%.1f GPU s, solo %v", 20*r.DurationS(), r.Solo())
	}
	if math.Abs(r.Mean.GPU-0.7) > 0.12 || math.Abs(r.Peak.MemMiB-760) > 40 {
		t.Errorf("mean %+v, peak %+v", r.Mean, r.Peak)
	}
	if r.GPUs[0].UUID == "" || r.GPUs[0].Arch != "pascal" || r.GPUs[0].MemMiB < 12000 {
		t.Errorf("GPU %+v", r.GPUs)
	}
	p, err := gpuprof.ProfileOf("hoomd", r)
	if err != nil || p.Peak().MemMiB < 700 {
		t.Errorf("%+v %v", p, err)
	}
	if left, err := prolog.List(dir.Ended()); err != nil || len(left) != 0 {
		t.Errorf("left over: %v %v", left, err)
	}
}

// A record that can't be kept is closed again by the next agent, with all that the
// one before it saw. The agents' clock is the test's: it stands still until the agent
// has done what is due, however long that takes on a busy machine.
func TestAgentRestarted(t *testing.T) {
	lib, _ := simulated(t, "1")
	dir, k := prolog.Dir(t.TempDir()), &kept{fail: true}
	var clock atomic.Int64
	clock.Store(time.Now().UnixNano())
	now := func() time.Time { return time.Unix(0, clock.Load()) }
	reg := prometheus.NewRegistry()
	const period = 20 * time.Millisecond
	first := startAgent(t, &Agent{
		Dir: dir, Devices: lib.Devices(), Period: period, Keep: k.keep, Now: now,
		Metrics: NewMetrics(reg),
	})
	must.OK(t, dir.Begin(&prolog.Job{
		JobID: 5, UID: 1000, User: "ann", GPUs: []int{0}, UUIDs: uuids(t, dir, 0),
		Start: now(),
	}))
	const samples = 4
	for n := range samples {
		eventually(t, "the next sample", func() bool { return counted(t, reg, "gpuprof_samples_total") > float64(n) })
		clock.Add(int64(period))
	}
	must.Get(dir.End(5, now(), "0:0"))(t)
	eventually(t, "an attempt to keep the record", func() bool { return k.attempts() > 0 })
	first()
	if left, err := prolog.List(dir.Ended()); err != nil || len(left) != 1 {
		t.Fatalf("the ended job's file is lost: %v %v", left, err)
	}
	k.mu.Lock()
	k.fail = false
	k.mu.Unlock()
	defer startAgent(t, &Agent{Dir: dir, Devices: lib.Devices(), Period: period, Keep: k.keep, Now: now})()
	if r := k.wait(t, 1)[0]; r.JobID != 5 || r.Cut || r.Samples < samples || len(r.Series) == 0 || r.MissedS != 0 {
		t.Errorf("record %+v", r)
	}
}

// eventually waits until a condition holds; it doesn't say when.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not come", what)
		}
	}
}

// counted is the sum of a counter over its labels.
func counted(t *testing.T, reg prometheus.Gatherer, name string) (sum float64) {
	t.Helper()
	families := must.Get(reg.Gather())(t)
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// fakeProcess is a process in a test's /proc.
type fakeProcess struct {
	parent                  int
	comm, line, exe, groups string
	uid                     int
}

// A process is its control group's job's, by number or by SLUID. Where Slurm uses none it
// is its step's, however deep; only Slurm makes a step.
func TestOwnerByStep(t *testing.T) {
	a := &Agent{Proc: t.TempDir()}
	me := os.Geteuid()
	step := func(line string) fakeProcess {
		return fakeProcess{parent: 1, comm: "slurmstepd", line: line, exe: "/usr/sbin/slurmstepd", uid: me}
	}
	a.jobs = map[run]*tracked{
		{ID: 18}: {job: &prolog.Job{JobID: 18, SLUID: "sEKNKTV3WPV500"}},
		{ID: 19}: {job: &prolog.Job{JobID: 19}},
	}
	upgraded, renamed, forged := step("slurmstepd: [12.extern]"), step("slurmstepd: [13.0]"), step("slurmstepd: [14.0]")
	debian := step("slurmstepd: [17.batch]")
	debian.exe += "-wlm"
	upgraded.exe += " (deleted)"
	renamed.exe = "/home/ann/sleep"
	forged.uid = 4242
	processes := map[int]fakeProcess{
		10: step("slurmstepd: [11.batch]"), 11: {parent: 10, comm: "bash) S 99", line: "bash"},
		12: {parent: 11, comm: "python", line: "python"},
		20: upgraded, 21: {parent: 20, comm: "app", line: "app"},
		30: renamed, 31: {parent: 30, comm: "app", line: "app"},
		40: forged, 41: {parent: 40, comm: "app", line: "app"},
		50: {parent: 1, comm: "nvidia-cuda-mps", line: "nvidia-cuda-mps-server"},
		51: {parent: 11, comm: "nvidia-cuda-mps", line: "called so"},
		60: step("slurmstepd: [15.0]"), 61: {parent: 60, groups: "0::/system.slice/slurmstepd.scope/job_16/step_0\n"},
		62: {parent: 60, groups: "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0/user/task_0\n"},
		63: {parent: 1, groups: "0::/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_batch/user/task_0/job_99\n"},
		64: {parent: 60, groups: "0::/system.slice/slurmstepd.scope/s0000000000000/step_0\n"}, // no job's that is known
		65: {parent: 1, groups: "0::/user.slice/sEKNKTV3WPV50\n"},
		66: debian, 67: {parent: 66},
		70: {parent: 71, line: "a"}, 71: {parent: 70, line: "b"}, // no tree, as numbers are used anew
		80: step("slurmstepd: [99999999999999999999.0]"), 81: {parent: 80},
		90: {parent: 4711, line: "its parent is gone"},
	}
	for pid, p := range processes {
		if p.uid != 0 && p.uid != me && me != 0 {
			continue
		}
		dir := filepath.Join(a.Proc, strconv.Itoa(pid))
		must.OK(t, os.MkdirAll(dir, 0o755))
		stat := strconv.Itoa(pid) + " (" + p.comm + ") S " + strconv.Itoa(p.parent) + " 1 1 0\n"
		for name, text := range map[string]string{
			"stat": stat, "comm": p.comm + "\n", "cmdline": p.line + "\x00-x\x00",
			"cgroup": p.groups,
		} {
			must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		if p.exe != "" {
			must.OK(t, os.Symlink(p.exe, filepath.Join(dir, "exe")))
		}
		if p.uid == 4242 {
			must.OK(t, os.Chown(dir, p.uid, -1))
		}
	}
	for pid, want := range map[int]int64{
		11: 11, 12: 11, 21: 12, 31: 0, 41: 0, 51: 11, 61: 16, 62: 18, 63: 18, 64: 15,
		65: 0, 67: 17, 71: 0, 81: 0, 90: 0, 4711: 0,
	} {
		if o := a.owner(pid); o != (owner{job: want}) {
			t.Errorf("process %d is %+v's, want job %d", pid, o, want)
		}
	}
	if o := a.owner(50); o != (owner{server: true}) {
		t.Errorf("the MPS server is %+v's", o)
	}
}

// idleFor are the jobs that an agent tells of, and for how long they have done nothing.
func (b *bench) idleFor() map[int64]time.Duration {
	out := map[int64]time.Duration{}
	for _, j := range b.Idle().Jobs {
		out[j.JobID] = time.Duration(j.IdleS * float64(time.Second)).Round(time.Minute)
	}
	return out
}

func TestAJobThatDoesNothingIsTold(t *testing.T) {
	b := newBench(t)
	c, use := b.steady(), 0.5
	c.use = func() (float64, float64, error) { return use, 0, nil }
	b.gpus[0].card = c
	b.begin(1, 0, 0)
	b.scan()
	b.until(b.now.Add(time.Hour))
	if got := b.idleFor(); len(got) > 0 {
		t.Errorf("it computes: %v", got)
	}
	use = 0.009
	b.until(b.now.Add(4 * time.Minute))
	if got := b.idleFor(); len(got) > 0 {
		t.Errorf("that soon: %v", got)
	}
	b.until(b.now.Add(30 * time.Minute))
	if got := b.idleFor()[1]; got < 33*time.Minute || got > 34*time.Minute {
		t.Errorf("idle for 34 minutes: %v", got)
	}
	use = 0.02
	b.until(b.now.Add(2 * time.Minute))
	if got := b.idleFor(); len(got) > 0 {
		t.Errorf("it computes again: %v", got)
	}
	use = 0
	b.until(b.now.Add(time.Hour))
	b.end(1)
	b.closed(1)
	b.pass()
	if got := b.idleFor(); len(got) > 0 {
		t.Errorf("it has ended: %v", got)
	}
}

// Of sharers that processes tell apart one may be idle; of others none is while the GPU computes.
func TestASharerThatDoesNothing(t *testing.T) {
	for told, want := range map[bool]int{true: 1, false: 0} {
		b := newBench(t)
		busy := b.now.Add(time.Minute) // until when job 2 is
		b.gpus[0].dev.MPS.OwnAddresses = true
		pids := map[int]int64{1: 1, 2: 2}
		if !told {
			pids[3] = -1
		}
		b.proc(pids)
		c := b.steady()
		c.procs = func() (out []nvml.Process, err error) {
			for pid := range pids {
				out = append(out, nvml.Process{PID: pid, MemMiB: 100})
			}
			return out, nil
		}
		c.uses = func(time.Time) ([]nvml.ProcessUse, error) {
			second := 0.0
			if b.now.Before(busy) {
				second = 0.1
			}
			return []nvml.ProcessUse{{PID: 1, At: b.now, SM: 0.5 - second}, {PID: 2, At: b.now, SM: second}}, nil
		}
		b.gpus[0].card = c
		b.begin(1, 0, 0)
		b.begin(2, 0, 0)
		b.scan()
		b.until(b.now.Add(20 * time.Minute))
		if got := b.idleFor(); len(got) != want || want == 1 && got[2] == 0 {
			t.Errorf("told apart %v: idle %v", told, got)
		}
	}
}

// A job that did nothing isn't told while its GPU can't be read, nor that it did nothing meanwhile; one reading that
// fails is no such gap.
func TestWhatWasNotSeenIsNotIdle(t *testing.T) {
	b := newBench(t)
	c, fails := b.steady(), error(nil)
	c.use = func() (float64, float64, error) { return 0, 0, fails }
	b.gpus[0].card = c
	b.begin(1, 0, 0)
	b.scan()
	b.until(b.now.Add(30 * time.Minute))
	fails = nvml.ErrLost
	b.until(b.now.Add(10 * time.Second))
	fails = nil
	b.until(b.now.Add(time.Minute))
	if got := b.idleFor()[1]; got < 30*time.Minute {
		t.Errorf("after a reading that failed: idle for %v", got)
	}
	fails = nvml.ErrLost
	b.until(b.now.Add(time.Hour))
	if got := b.idleFor(); len(got) > 0 {
		t.Errorf("while it can't be read: %v", got)
	}
	fails = nil
	b.until(b.now.Add(10 * time.Minute))
	if got := b.idleFor()[1]; got > 11*time.Minute || got < 9*time.Minute {
		t.Errorf("read again for ten minutes: idle for %v", got)
	}
}

// A GPU that doesn't answer is no idle one.
func TestWhatIsNotReadIsNotIdle(t *testing.T) {
	b := newBench(t)
	c := b.steady()
	c.use = func() (float64, float64, error) { return 0, 0, nvml.ErrNotSupported }
	b.gpus[0].card = c
	b.begin(1, 0, 0)
	b.scan()
	b.until(b.now.Add(time.Hour))
	if got := b.idleFor(); len(got) > 0 {
		t.Error(got)
	}
}

// A job of four processes is given 4,000 MiB, each of them 1,500. Where the driver limits control groups the four take
// no more than the job's; where it doesn't, each no more than its own. A neighbour computes on.
func TestLimitOfAJobsGroup(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: the driver's limits")
	}
	for name, driver := range map[string][]string{"by group": {"--group-limits"}, "by process": nil} {
		t.Run(name, func(t *testing.T) {
			lib, gpusim := simulated(t, "20", append(driver, "--model", "v100", "--driver", "555")...)
			run := must.Get(os.MkdirTemp("", "sbl"))(t) // sockets need a short path
			t.Cleanup(func() { os.RemoveAll(run) })
			control := filepath.Join(filepath.Dir(gpusim), "nvidia-cuda-mps-control")
			controller := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
				_ *http.Request,
			) {
				fmt.Fprint(w, `{"mib": 1500, "job_mib": 4000}`)
			}))
			t.Cleanup(controller.Close)
			dir, groups := prolog.Dir(run), t.TempDir()
			var log bytes.Buffer
			a := &Agent{
				Dir: dir, Devices: lib.Devices(), Node: "n1", Period: time.Second, Keep: new(kept).keep, Now: time.Now,
				Groups: groups,
				Log:    slog.New(slog.NewTextHandler(&log, nil)),
			}
			must.OK(t, a.Start())
			cards := must.Get(dir.Cards(""))(t)
			hook := &prolog.Hook{
				Dir: dir, Cards: cards,
				Controller: &prolog.Controller{URL: controller.URL, Timeout: time.Minute}, Now: time.Now,
				MPS: &prolog.MPS{
					Dir: dir, Control: control, Cards: cards, Multiuser: true,
					Env: []string{"GPUSIM_STATE=" + os.Getenv("GPUSIM_STATE")},
				},
			}
			env := func(key string) string {
				return map[string]string{
					"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "0", "SLURM_JOB_USER": "root", "SLURM_JOB_GPUS": "0",
					"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
				}[key]
			}
			must.OK(t, hook.Prolog(t.Context(), env))
			t.Cleanup(func() { _ = hook.Epilog(t.Context(), env) })
			a.scan()
			a.sample() // before the group is there
			group := filepath.Join(groups, "system.slice/slurmstepd.scope/job_7")
			must.OK(t, os.MkdirAll(filepath.Join(group, "step_0/user/task_0"), 0o755))
			a.sample()
			var vars bytes.Buffer
			must.OK(t, hook.TaskProlog(&vars, env))
			flat := filepath.Join(run, "flat.json")
			must.OK(t, os.WriteFile(flat,
				[]byte(`{"app": "flat", "duration_s": 1e5, "period_s": 1e5, "series": [{"gpu": 0.1, "core": 0.1, "mem_mib": 1}]}`),
				0o644))
			// computes starts a process and reports whether it gets its memory.
			computes := func(procs string, mib int) (is func() bool) {
				cmd := exec.Command("sh", "-c", fmt.Sprintf("echo $$ >>%s; exec %s run flat --profile %s --mem-mib %d", procs,
					gpusim, flat, mib))
				cmd.Env = append(os.Environ(), strings.Split(strings.ReplaceAll(strings.TrimSpace(vars.String()), "export ", ""),
					"\n")...)
				must.OK(t, cmd.Start())
				ended := make(chan struct{})
				go func() { _ = cmd.Wait(); close(ended) }()
				t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
				is = func() bool {
					on := must.Get(a.gpus[0].card.Processes())(t)
					return slices.ContainsFunc(on, func(p nvml.Process) bool { return p.PID == cmd.Process.Pid })
				}
				slurmtest.Wait(t.Context(), time.Minute, func() bool {
					select {
					case <-ended:
						return true
					default:
						return is()
					}
				})
				return is
			}
			neighbour := computes("/dev/null", 1400)
			procs := filepath.Join(group, "step_0/user/task_0/cgroup.procs")
			if computes(procs, 1600)() {
				t.Error("a process has more than 1,500 MiB")
			}
			n := 0
			for range 4 {
				if computes(procs, 1400)() {
					n++
				}
			}
			if want := map[string]int{"by group": 2, "by process": 4}[name]; n != want || !neighbour() {
				t.Errorf("%d processes of 1,400 MiB compute, want %d, and a neighbour: %v; %s", n, want, neighbour(), log.String())
			}
			if strings.Contains(log.String(), "limit") {
				t.Errorf("log: %s", log.String())
			}
		})
	}
}
