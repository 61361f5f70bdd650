package gpusim

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// machine makes a state file whose clock the test owns: GPU seconds since the file was made.
func machine(t testing.TB, cfg Config) (*State, *float64) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state")
	must.OK(t, Create(path, cfg))
	s := must.Get(Open(path))(t)
	t.Cleanup(func() { _ = s.Close() })
	now := new(float64)
	s.clock = func() int64 { return s.header().T0ns + int64(*now/s.Scale()*1e9) }
	return s, now
}

// process is a process that does nothing, to claim a GPU for.
func process(t testing.TB) int {
	t.Helper()
	c := exec.Command("sleep", "1000")
	must.OK(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _, _ = c.Process.Wait() })
	return c.Process.Pid
}

// server is a process with an MPS server's place on the GPU.
func server(t testing.TB, d *Device) int {
	t.Helper()
	pid := process(t)
	must.Get(d.ClaimServer(Claimant{PID: pid}))(t)
	return pid
}

// kill ends a process, of which nothing is left then.
func kill(t testing.TB, pid int) {
	t.Helper()
	p := must.Get(os.FindProcess(pid))(t)
	must.OK(t, p.Kill())
	_, _ = p.Wait()
}

func steady(app string, seconds float64, u rlcore.Use) *rlcore.Profile {
	return &rlcore.Profile{App: app, DurationS: seconds, PeriodS: seconds, Series: []rlcore.Use{u}, StepS: 0.2}
}

func claim(t testing.TB, d *Device, c Claimant, p *rlcore.Profile) *Slot {
	t.Helper()
	return must.Get(d.Claim(c, p))(t)
}

func look1(t testing.TB, d *Device) Snapshot {
	t.Helper()
	return must.Get(d.Snapshot())(t)
}

func near(a, b, tol float64) bool { return math.Abs(a-b) <= tol*math.Max(1, math.Abs(b)) }

func TestAloneTakesSoloTime(t *testing.T) {
	s, now := machine(t, Config{Scale: 40})
	d := s.Device(0)
	p := &rlcore.Profile{App: "lammps", DurationS: 25, PeriodS: 10, Series: []rlcore.Use{
		{GPU: .2, Core: .1, MemMiB: 400, PCIeMBps: 100}, {GPU: .6, Core: .3, MemMiB: 8000}, {GPU: 1, Core: 1, MemMiB: 500},
	}}
	*now = 3
	slot := claim(t, d, Claimant{}, p)
	*now = 15 // in the second phase
	if g := look1(t, d); g.GPU != .6 || g.MemMiB != 8000 || !near(g.BusyS, 10*.2+2*.6, 1e-9) {
		t.Errorf("in the second phase: %+v", g)
	}
	*now = 1000
	pr := must.Get(slot.Progress())(t)
	if pr.Status != Finished || pr.EndT != 28 || pr.DoneS != 25 || pr.MemMaxMiB != 8000 {
		t.Errorf("progress %+v", pr)
	}
	g := look1(t, d)
	if !near(g.BusyS, 10*.2+10*.6+5*1, 1e-9) || !near(g.MemMiBS, 4000+80000+2500, 1e-9) ||
		!near(g.PCIeMB, 1000, 1e-9) || len(g.Processes) != 0 {
		t.Errorf("afterwards: %+v", g)
	}
	must.OK(t, slot.Release())
}

// expected is the law's own word on the given uses together.
func expected(l *contention.Law, d *Device, step float64, us ...rlcore.Use) []float64 {
	var in []contention.Demand
	for _, u := range us {
		in = append(in, contention.Demand{GPU: u.GPU, Core: u.Core, PCIe: u.PCIeMBps / d.rec.LinkMBps, StepS: step})
	}
	return l.Slowdowns(nil, in)
}

func TestSharersSlowAsTheLawSays(t *testing.T) {
	a := rlcore.Use{GPU: .9, Core: .7, MemMiB: 3000, PCIeMBps: 500}
	b := rlcore.Use{GPU: .5, Core: .3, MemMiB: 2000, PCIeMBps: 200}
	for _, mps := range []bool{true, false} {
		s, now := machine(t, Config{})
		d := s.Device(0)
		l, srv := &contention.TimeSlice, 0
		if mps {
			l, srv = &contention.MPS, server(t, d)
		}
		sa := claim(t, d, Claimant{PID: process(t), Server: srv}, steady("a", 100, a))
		sb := claim(t, d, Claimant{PID: process(t), Server: srv}, steady("b", 1e5, b))
		want := expected(l, d, .2, a, b)
		*now = 1e4
		pa := must.Get(sa.Progress())(t)
		if !near(pa.EndT, 100*want[0], 1e-9) {
			t.Errorf("mps %v: a took %v, the law says %v", mps, pa.EndT, 100*want[0])
		}
		pb := must.Get(sb.Progress())(t)
		// Slowed while a was there, alone since.
		if done := pa.EndT/want[1] + 1e4 - pa.EndT; !near(pb.DoneS, done, 1e-9) {
			t.Errorf("mps %v: b did %v, want %v", mps, pb.DoneS, done)
		}
	}
}

// A process beside an MPS server takes turns with it; the server's clients take turns with the process as one.
func TestServerAndOwnContextTakeTurns(t *testing.T) {
	s, _ := machine(t, Config{})
	d := s.Device(0)
	u := rlcore.Use{GPU: .6, Core: .5, MemMiB: 100}
	srv := server(t, d)
	claim(t, d, Claimant{PID: process(t), Server: srv}, steady("a", 100, u))
	claim(t, d, Claimant{PID: process(t), Server: srv}, steady("b", 100, u))
	both := look1(t, d)
	claim(t, d, Claimant{PID: process(t)}, steady("own", 100, u))
	three := look1(t, d)
	within := expected(&contention.MPS, d, .2, u, u)[0]
	if !near(both.Processes[1].Slowdown, within, 1e-9) {
		t.Errorf("two clients: %v, want %v", both.Processes[1].Slowdown, within)
	}
	turn := three.Processes[1].Slowdown / within
	if turn <= 1 || three.Processes[3].Slowdown <= 1 || three.GPU > 1 {
		t.Errorf("with a third: %+v", three.Processes)
	}
}

func TestOutOfMemory(t *testing.T) {
	s, now := machine(t, Config{})
	d := s.Device(0)
	grows := &rlcore.Profile{
		App: "grows", DurationS: 20, PeriodS: 10,
		Series: []rlcore.Use{{GPU: .1, MemMiB: 1000}, {GPU: .1, MemMiB: 9000}},
	}
	sa := claim(t, d, Claimant{PID: process(t)}, grows)
	sb := claim(t, d, Claimant{PID: process(t)}, steady("b", 100, rlcore.Use{GPU: .1, MemMiB: 5000}))
	third := steady("c", 1, rlcore.Use{MemMiB: 6197})
	must.Is(t, must.Err(d.Claim(Claimant{PID: process(t)}, third)), ErrOOM, "third")
	*now = 50
	pa := must.Get(sa.Progress())(t)
	pb := must.Get(sb.Progress())(t)
	if pa.Status != OOM || !near(pa.DoneS, 10, 1e-9) || pb.Status != Running {
		t.Errorf("a %+v, b %+v", pa, pb)
	}
	if g := look1(t, d); g.OOM != 2 || g.MemMiB != 5000 {
		t.Errorf("device %+v", g)
	}
}

func TestDeadProcessIsGoneAtTheNextLook(t *testing.T) {
	s, now := machine(t, Config{})
	d := s.Device(0)
	u := rlcore.Use{GPU: .9, Core: .9, MemMiB: 3000}
	victim := process(t)
	claim(t, d, Claimant{PID: victim}, steady("a", 100, u))
	sb := claim(t, d, Claimant{PID: process(t)}, steady("b", 100, u))
	*now = 10
	kill(t, victim)
	g := look1(t, d)
	if g.MemMiB != 3000 || len(g.Processes) != 1 || g.Processes[0].Slowdown != 1 {
		t.Errorf("%+v", g)
	}
	// The survivor's own look finds it too.
	*now = 10.5
	must.Equal(t, must.Get(sb.Progress())(t).Slowdown, 1)
}

func TestStoppedProcessKeepsItsMemoryOnly(t *testing.T) {
	s, now := machine(t, Config{})
	d := s.Device(0)
	pid := process(t)
	slot := claim(t, d, Claimant{PID: pid}, steady("a", 100, rlcore.Use{GPU: .9, MemMiB: 3000}))
	must.OK(t, unix.Kill(pid, unix.SIGSTOP))
	for status(pid, slot.start) != Paused {
		time.Sleep(time.Millisecond)
	}
	look1(t, d)
	*now = 50
	if g := look1(t, d); g.GPU != 0 || g.MemMiB != 3000 || g.Processes[0].DoneS != 0 {
		t.Errorf("stopped: %+v", g)
	}
	must.OK(t, unix.Kill(pid, unix.SIGCONT))
	for status(pid, slot.start) != Running {
		time.Sleep(time.Millisecond)
	}
	look1(t, d)
	*now = 60
	if p, err := slot.Progress(); err != nil || !near(p.DoneS, 10, 1e-9) {
		t.Errorf("continued: %+v %v", p, err)
	}
}

// The outcome must not depend on who looks when.
func TestLooksDontChangeTheOutcome(t *testing.T) {
	pids, srv := []int{process(t), process(t), process(t)}, process(t)
	rapid.Check(t, func(r *rapid.T) {
		var profiles []*rlcore.Profile
		for range pids {
			p := &rlcore.Profile{
				App: "x", PeriodS: rapid.Float64Range(.5, 5).Draw(r, "period"),
				StepS: rapid.Float64Range(0, .5).Draw(r, "step"),
			}
			for range rapid.IntRange(1, 8).Draw(r, "points") {
				p.Series = append(p.Series, rlcore.Use{
					GPU: rapid.Float64Range(0, 1).Draw(r, "gpu"), Core: rapid.Float64Range(0, 1).Draw(r, "core"),
					MemMiB: rapid.Float64Range(0, 4500).Draw(r, "mem"), PCIeMBps: rapid.Float64Range(0, 9000).Draw(r, "pcie"),
				})
			}
			p.DurationS = p.PeriodS * float64(len(p.Series))
			profiles = append(profiles, p)
		}
		looks := rapid.SliceOfN(rapid.Float64Range(0, 200), 0, 30).Draw(r, "looks")
		outcome := func(looks []float64) (out []Process, g Snapshot) {
			s, now := machine(t, Config{})
			defer s.Close()
			d := s.Device(0)
			if _, err := d.ClaimServer(Claimant{PID: srv}); err != nil {
				r.Fatal(err)
			}
			var slots []*Slot
			for i, p := range profiles {
				s, err := d.Claim(Claimant{PID: pids[i], Server: srv * (i % 2)}, p)
				if err == nil {
					slots = append(slots, s)
				} else if !errors.Is(err, ErrOOM) {
					r.Fatal(err)
				}
			}
			for _, at := range looks {
				*now = max(*now, at)
				if g := look1(t, d); g.MemMiB > g.MemTotalMiB || g.GPU > 1 || g.GPU < 0 {
					r.Fatalf("impossible: %+v", g)
				}
			}
			*now = 1000
			for _, s := range slots {
				p := must.Get(s.Progress())(r)
				out = append(out, p)
			}
			return out, look1(t, d)
		}
		a, ga := outcome(nil)
		b, gb := outcome(looks)
		for i := range a {
			if a[i].Status != b[i].Status || !near(a[i].EndT, b[i].EndT, 1e-6) || !near(a[i].DoneS, b[i].DoneS, 1e-6) {
				r.Fatalf("process %d: %+v without looks, %+v with", i, a[i], b[i])
			}
			if a[i].EndT-a[i].StartT < a[i].DoneS*(1-1e-9) {
				r.Fatalf("process %d was faster than alone: %+v", i, a[i])
			}
		}
		if !near(ga.BusyS, gb.BusyS, 1e-6) || !near(ga.MemMiBS, gb.MemMiBS, 1e-6) || ga.OOM != gb.OOM {
			r.Fatalf("device: %+v without looks, %+v with", ga, gb)
		}
	})
}

func TestVisible(t *testing.T) {
	gpus := []string{"GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"}
	for v, want := range map[string][]int{
		"": nil, "0": {0}, "2,0": {2, 0}, "1,7,0": {1}, "-1": nil, "0,0": nil, "GPU-cccc": {2}, "GPU-aa": nil,
		"GPU-aabb-2,GPU-aaaa-1": {1, 0}, "NoDevFiles": nil, " 1 , 2 ": {1, 2},
	} {
		must.Equal(t, visible(v, true, gpus, 3), want, v)
	}
	// An instance is named, never numbered, and the only one that is seen.
	for v, want := range map[string][]int{
		"MIG-2": {4}, "MIG-2,MIG-1": {4}, "MIG-": nil, "3": nil, "1,MIG-1": {1},
		"MIG-3": nil,
	} {
		must.Equal(t, visible(v, true, append(gpus, "MIG-1", "MIG-2"), 3), want, "%q with instances", v)
	}
	// A server of an instance has no other, which a number may mean.
	must.Equal(t, visible("0", true, []string{"MIG-1"}, 1), []int{0}, "a server's")
	must.Equal(t, visible("", false, append(gpus, "MIG-1"), 3), []int{0, 1, 2}, "unset")
}

func TestCreateRefusesNonsense(t *testing.T) {
	for _, cfg := range []Config{
		{Model: "rtx"},
		{GPUs: -1},
		{GPUs: 17},
		{Scale: math.NaN()},
		{Driver: "1"},
		{MIG: true},
		{Model: "a100", Instances: []string{"1g.18gb"}},
	} {
		must.Fail(t, Create(filepath.Join(t.TempDir(), "s"), cfg), "", cfg)
	}
	for _, m := range ModelNames() {
		s, _ := machine(t, Config{Model: m, GPUs: 3, Minors: []int{2, 0, 1}})
		if len(s.Devices()) != 3 || s.Device(0).UUID() == s.Device(1).UUID() || s.Device(0).rec.Minor != 2 {
			t.Errorf("%s: %v", m, s.Devices())
		}
	}
}

func TestLimitsFromVoltaOn(t *testing.T) {
	for _, model := range []string{"titanxp", "a100"} {
		s, now := machine(t, Config{Model: model})
		d := s.Device(0)
		p := steady("a", 100, rlcore.Use{GPU: .5, Core: .8, MemMiB: 3000, PCIeMBps: 150})
		c := Claimant{PID: process(t), Server: server(t, d), Limits: Limits{Threads: .4}}
		half := claim(t, d, c, p)
		*now = 1e6
		pr := must.Get(half.Progress())(t)
		// Kernels on half the SMs they would use take twice as long: 50 s + 100 s.
		want := map[string]float64{"titanxp": 100, "a100": 150}[model]
		if g := look1(t, d); !near(pr.EndT, want, 1e-9) || !near(g.PCIeMB, 15000, 1e-9) {
			t.Errorf("%s: %+v moved %v", model, pr, g.PCIeMB)
		}
		c.Limits = Limits{MemMiB: 2999}
		must.Equal(t, errors.Is(must.Err(d.Claim(c, p)), ErrOOM), model == "a100", "the memory limit of %s holds", model)
	}
}

func TestParseLimits(t *testing.T) {
	for _, c := range []struct {
		mem, percent string
		want         Limits
		bad          bool
	}{
		{"", "", Limits{}, false},
		{"0=1G,1=512MB", "25", Limits{MemMiB: 1024, Threads: .25}, false},
		{"1=3g", "100", Limits{Threads: 1}, false},
		{"0=1048576", "", Limits{MemMiB: 1}, false},
		{mem: "1G", bad: true},
		{mem: "0=", bad: true},
		{mem: "0=-1G", bad: true},
		{mem: "x=1G", bad: true},
		{percent: "0", bad: true},
		{percent: "101", bad: true},
		{percent: "NaN", bad: true},
	} {
		got, err := ParseLimits(c.mem, c.percent)
		if (err != nil) != c.bad || err == nil && got != c.want {
			t.Errorf("%q %q: %+v, %v", c.mem, c.percent, got, err)
		}
	}
}
