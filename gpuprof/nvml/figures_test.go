package nvml

import (
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

var use = rlcore.Use{GPU: .5, Core: .4, MemMiB: 2000, PCIeMBps: 3000}

func near(a, b float64) bool { return math.Abs(a-b) <= .02*math.Max(1, math.Abs(b)) }

// Every figure says what the GPU does.
func TestFigures(t *testing.T) {
	lib, st := machine(t, gpusim.Config{Model: "h200"})
	d := &lib.Devices()[0]
	server := serve(t, st.Device(0))
	begin := time.Now()
	if _, err := d.Activity(); !errors.Is(err, ErrNotYet) {
		t.Fatal(err)
	}
	pid := run(t, st.Device(0), gpusim.Claimant{Server: server}, use)
	must.Get(d.Activity())(t)
	time.Sleep(LeastActivity + 10*time.Millisecond)
	a, err := d.Activity()
	if err != nil || !near(a.SM, .4) || !near(a.Graphics, .5) || !near(a.PCIeMBps, 3000) ||
		a.Over < 50*time.Millisecond {
		t.Errorf("activity %+v, %v", a, err)
	}
	s, err := lib.Devices()[0].Sample()
	if err != nil || !near(s.GPU, .5) || !near(s.MemMiB, 2002) || !near(s.PCIeMBps, 3000) || s.PowerW < 100 {
		t.Errorf("sample %+v, %v", s, err)
	}
	ps, err := d.Processes()
	want := []Process{{PID: server, MemMiB: 30, WithoutMPS: true}, {PID: pid, MemMiB: 2000}}
	if err != nil || !slices.Equal(ps, want) {
		t.Errorf("processes %v, %v", ps, err)
	}
	us, err := d.ProcessUtilisation(begin)
	if err != nil || len(us) != 2 || us[1].PID != pid || us[1].SM != .5 ||
		us[1].At.Before(begin.Truncate(time.Microsecond)) {
		t.Errorf("process utilisation %+v, %v", us, err)
	}
	// Nothing is newer than tomorrow.
	if pts, err := d.Samples(begin.Add(24 * time.Hour)); err != nil || len(pts) != 0 {
		t.Errorf("samples %+v, %v", pts, err)
	}
	if us, err = d.ProcessUtilisation(begin.Add(24 * time.Hour)); err != nil || len(us) != 0 {
		t.Errorf("process utilisation %+v, %v", us, err)
	}
}

// The driver's buffer shows a rhythm that is faster than anybody asks.
func TestSamples(t *testing.T) {
	const scale = 50 // 1/6 s of the GPU's in 3.3 ms
	lib, st := machine(t, gpusim.Config{Scale: scale})
	d := &lib.Devices()[0]
	p := &rlcore.Profile{App: "a", PeriodS: 1}
	for i := range 20 {
		p.Series = append(p.Series, rlcore.Use{GPU: float64(1 - i%2), Core: float64(1 - i%2)})
	}
	p.DurationS = float64(len(p.Series))
	slot := must.Get(st.Device(0).Claim(gpusim.Claimant{}, p))(t)
	begin := time.Now()
	for time.Since(begin) < 200*time.Millisecond { // ten seconds of the GPU's
		time.Sleep(5 * time.Millisecond)
	}
	must.Get(slot.Progress())(t)
	pts, err := d.Samples(begin)
	if err != nil || len(pts) < 40 {
		t.Fatalf("%d samples, %v", len(pts), err)
	}
	busy, turns := 0.0, 0
	for i, q := range pts {
		busy += q.GPU
		if !q.At.After(begin) || i > 0 && (q.At.Sub(pts[i-1].At)-time.Second/6/scale).Abs() > time.Millisecond/2 {
			t.Fatalf("times %v", pts)
		}
		if i > 0 && (q.GPU > .5) != (pts[i-1].GPU > .5) {
			turns++
		}
	}
	if seconds := float64(len(pts)) / 6; math.Abs(busy/float64(len(pts))-.5) > .1 || math.Abs(float64(turns)-seconds) > 2 {
		t.Errorf("in %v s busy for %v with %d turns: %v", seconds, busy/float64(len(pts)), turns, pts)
	}
	// What was seen isn't seen again.
	if again, err := d.Samples(pts[len(pts)-1].At.Add(time.Millisecond)); err != nil || len(again) > len(pts)/2 {
		t.Errorf("%d again, %v", len(again), err)
	}
}

// A MIG instance has its own memory, processes and activity.
func TestInstances(t *testing.T) {
	lib, st := machine(t, gpusim.Config{Model: "h200", Instances: []string{"1g.18gb", "3g.71gb"}})
	d := &lib.Devices()[0]
	if !d.MIG.Can || !d.MIG.On || d.MIG.Max != 7 || len(d.MIG.Instances) != 2 {
		t.Fatalf("%+v", d.MIG)
	}
	for k, sim := range st.Device(0).Instances() {
		in := &d.MIG.Instances[k]
		if in.UUID != sim.UUID || in.Profile != sim.Profile || in.GPUInstance != sim.GPUInstance || in.MemMiB != sim.MemMiB ||
			in.SMs != sim.SMs || in.Slices != 1+2*k {
			t.Errorf("%+v, want %+v", in, sim)
		}
	}
	if _, err := st.Device(0).Claim(gpusim.Claimant{},
		&rlcore.Profile{DurationS: 1, PeriodS: 1, Series: []rlcore.Use{use}}); !errors.Is(err, gpusim.ErrNoInstance) {
		t.Errorf("a GPU in MIG mode computes outside its instances: %v", err)
	}
	small, large := &d.MIG.Instances[0], &d.MIG.Instances[1]
	if _, err := st.Device(0).Claim(gpusim.Claimant{Instance: small.UUID},
		&rlcore.Profile{DurationS: 1, PeriodS: 1, Series: []rlcore.Use{{MemMiB: small.MemMiB + 1}}}); !errors.Is(err,
		gpusim.ErrOOM) {
		t.Errorf("more memory than the instance has: %v", err)
	}
	a := run(t, st.Device(0), gpusim.Claimant{Instance: small.UUID}, rlcore.Use{GPU: .5, Core: .1, MemMiB: 1000})
	// Alone on the card it would run 60/132 of the SMs for all the time.
	b := run(t, st.Device(0), gpusim.Claimant{Instance: large.UUID}, rlcore.Use{GPU: 1, Core: 1, MemMiB: 3000})
	for _, c := range []struct {
		k, pid   int
		mem      float64
		sm, busy float64
	}{{0, a, 1000, .1 * 132 / 16, .5}, {1, b, 3000, 1, 1}} {
		in, profile := d.Instance(c.k), d.MIG.Instances[c.k].Profile
		if _, err := in.Activity(); !errors.Is(err, ErrNotYet) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
		act, err := in.Activity()
		if err != nil || !near(act.SM, min(c.sm, c.busy)) || !near(act.Graphics, c.busy) {
			t.Errorf("%s: activity %+v, %v", profile, act, err)
		}
		if mem, err := in.Read(Memory); err != nil || mem != c.mem {
			t.Errorf("%s: %v MiB, %v", profile, mem, err)
		}
		ps, err := in.Processes()
		if want := []Process{{PID: c.pid, MemMiB: c.mem, WithoutMPS: true}}; err != nil || !slices.Equal(ps, want) {
			t.Errorf("%s: processes %+v, %v", profile, ps, err)
		}
	}
	// The card itself still tells memory and power.
	s, err := lib.Devices()[0].Sample()
	if err != nil || s.MemMiB < 4000 || s.PowerW == 0 || s.GPU != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// An instance is a card with a name of its own and its card as its parent. What NVML gives of whole GPUs alone is
// divided by SMs; what nobody gives is not known, and never 0.
func TestWhatAnInstanceIs(t *testing.T) {
	for name, c := range map[string]struct {
		model   string
		cut     []string
		driver  string
		clients []int
		parts   []float64 // of the card's power
		unknown []string
	}{
		"A100": {
			"a100",
			[]string{"1g.5gb", "2g.10gb", "4g.20gb"},
			"535",
			[]int{6, 13, 27},
			[]float64{14. / 98, 28. / 98, 56. / 98},
			[]string{Utilisation, GPM, SampleBuffer, ProcessUtilisation},
		},
		"H200": {
			"h200",
			[]string{"1g.18gb", "3g.71gb"},
			"535",
			[]int{6, 20},
			[]float64{16. / 76, 60. / 76},
			[]string{Utilisation, SampleBuffer, ProcessUtilisation},
		},
		"a newer driver": {
			"h200",
			[]string{"1g.18gb"},
			"590",
			[]int{8},
			[]float64{1},
			[]string{Utilisation, SampleBuffer, ProcessUtilisation},
		},
		"the whole of it": {
			"a100",
			[]string{"7g.40gb"},
			"535",
			[]int{48},
			[]float64{1},
			[]string{Utilisation, GPM, SampleBuffer, ProcessUtilisation},
		},
	} {
		t.Run(name, func(t *testing.T) {
			lib, st := machine(t, gpusim.Config{
				Model: c.model, Instances: c.cut, Driver: c.driver, GroupLimits: true,
				Exclusive: true,
			})
			whole := lib.Devices()[0]
			must.Equal(t, whole.Mode, "") // of a GPU in MIG mode NVML gives none
			run(t, st.Device(0), gpusim.Claimant{Instance: whole.MIG.Instances[0].UUID},
				rlcore.Use{GPU: .1, Core: .1, MemMiB: 100, PCIeMBps: 900})
			watts := must.Get(whole.Read(Power))(t)
			for k, profile := range c.cut {
				d := whole.Instance(k)
				must.Equal(t, d.Model, whole.Model+" MIG "+profile)
				must.Equal(t, d.Parent, whole.UUID)
				must.Equal(t, strings.HasPrefix(d.UUID, "MIG-"), true)
				must.Equal(t, d.MPS.MaxClients, c.clients[k], profile)
				must.Equal(t, d.Mode, Exclusive)
				must.Equal(t, d.GroupLimits, false)
				if w := must.Get(d.Read(Power))(t); !near(w, watts*c.parts[k]) {
					t.Errorf("%s: %v of %v W", profile, w, watts)
				}
				if mbps, err := d.PCIe(); err != nil || !near(mbps, 900*c.parts[k]) {
					t.Errorf("%s: %v MB/s, %v", profile, mbps, err)
				}
				for _, source := range c.unknown {
					must.Equal(t, d.Answers[source], false, source)
				}
				if _, _, err := d.Utilisation(); !errors.Is(err, ErrNotSupported) {
					t.Errorf("utilisation: %v", err)
				}
				if _, err := d.Activity(); errors.Is(err, ErrNotSupported) != slices.Contains(c.unknown, GPM) {
					t.Errorf("activity: %v", err)
				}
			}
		})
	}
}

// A process that is no client of the card's MPS server is known as such, on cards that list clients and on those
// that hide them.
func TestProcessesWithoutMPS(t *testing.T) {
	for model, clients := range map[string]bool{"titanxp": false, "v100": true} {
		t.Run(model, func(t *testing.T) {
			lib, st := machine(t, gpusim.Config{Model: model})
			server := serve(t, st.Device(0))
			client := run(t, st.Device(0), gpusim.Claimant{Server: server}, use)
			plain := run(t, st.Device(0), gpusim.Claimant{}, rlcore.Use{MemMiB: 10})
			got := map[int]bool{}
			for _, p := range must.Get(lib.Devices()[0].Processes())(t) {
				got[p.PID] = p.WithoutMPS
			}
			if without, seen := got[client]; without || seen != clients || !got[plain] {
				t.Errorf("%v; %d is a client of %d, and %d isn't", got, client, server, plain)
			}
		})
	}
}

// A control group is limited where the driver can, by root, and while it is there; a MIG instance isn't.
func TestLimitGroup(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  gpusim.Config
		gone bool
		want string
	}{
		"limited": {cfg: gpusim.Config{Model: "v100", GroupLimits: true}},
		"the group has gone": {
			cfg: gpusim.Config{Model: "v100", GroupLimits: true}, gone: true,
			want: "gpu 0: limit the memory of ",
		},
		"an older driver": {cfg: gpusim.Config{Model: "v100"}, want: ErrNotSupported.Error()},
		"cut into MIG instances": {
			cfg:  gpusim.Config{Model: "h200", GroupLimits: true, Instances: []string{"1g.18gb"}},
			want: ErrNotSupported.Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			lib, _ := machine(t, c.cfg)
			d, group := lib.Devices()[0], t.TempDir()
			if len(c.cfg.Instances) > 0 {
				d = d.Instance(0)
			}
			if c.gone {
				must.OK(t, os.Remove(group))
			}
			for range 20 { // again and again, as agents start
				if err := d.LimitGroup(group, 1000); os.Getuid() == 0 &&
					((err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want)) {
					t.Fatalf("%v, want %q", err, c.want)
				}
			}
		})
	}
}
