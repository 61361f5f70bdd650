package nvml

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

var use = rlcore.Use{GPU: .5, Core: .4, MemMiB: 2000, PCIeMBps: 3000}

func near(a, b float64) bool { return math.Abs(a-b) <= .02*math.Max(1, math.Abs(b)) }

// Every figure says what the GPU does.
func TestFiguresSayWhatTheGPUDoes(t *testing.T) {
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
	if err != nil || !near(a.SM, .4) || !near(a.Graphics, .5) || !near(a.PCIeMBps, 3000) || a.Over < 50*time.Millisecond {
		t.Errorf("activity %+v, %v", a, err)
	}
	s, fails := read(lib, 0)
	if len(fails) > 0 || !near(s.GPU, .5) || !near(s.MemMiB, 2030) || !near(s.PCIeMBps, 3000) || s.PowerW < 100 {
		t.Errorf("%+v, %v", s, fails)
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
	must.Equal(t, must.Get(d.ProcessUtilisation(begin.Add(24*time.Hour)))(t), nil)
}

// What the driver reserves is no job's, whichever of its calls says what is in use; it isn't to be had either.
func TestMemoryWithoutTheDrivers(t *testing.T) {
	for _, driver := range []string{"470", "550"} {
		t.Run(driver, func(t *testing.T) {
			lib, st := machine(t, gpusim.Config{Model: "a100", Driver: driver})
			d := &lib.Devices()[0]
			must.Equal(t, must.Get(d.Memory())(t), 0, "an idle card's")
			run(t, st.Device(0), gpusim.Claimant{}, rlcore.Use{GPU: .5, MemMiB: 2000})
			must.Equal(t, [2]float64{must.Get(d.Memory())(t), d.MemMiB}, [2]float64{2000, 40340})
		})
	}
}

// What is counted as in use of a NUMA node isn't what jobs hold.
func TestMemoryOfANUMANode(t *testing.T) {
	lib, st := machine(t, gpusim.Config{Model: "gh200"})
	run(t, st.Device(0), gpusim.Claimant{}, use)
	_, err := lib.Devices()[0].Memory()
	must.Equal(t, errors.Is(err, ErrNotSupported), true, err)
}

// A MIG instance is a card with a name of its own and its card as its parent. It has its own memory, processes and,
// from Hopper on, activity. What NVML gives of whole GPUs alone is divided by SMs; what nobody gives is not known, and
// never 0.
func TestFiguresOfAnInstance(t *testing.T) {
	hopper, ampere := []string{Utilisation, ProcessUtilisation}, []string{Utilisation, ProcessUtilisation, GPM}
	for name, c := range map[string]struct {
		cfg     gpusim.Config
		clients []int
		parts   []float64 // of the card's power
		unknown []string
	}{
		"A100": {
			cfg:     gpusim.Config{Model: "a100", Instances: []string{"1g.5gb", "2g.10gb", "4g.20gb"}},
			clients: []int{6, 13, 27}, parts: []float64{14. / 98, 28. / 98, 56. / 98}, unknown: ampere,
		},
		"H200": {
			cfg:     gpusim.Config{Model: "h200", Instances: []string{"1g.18gb", "3g.71gb"}},
			clients: []int{6, 20}, parts: []float64{16. / 76, 60. / 76}, unknown: hopper,
		},
		"a newer driver": {
			cfg:     gpusim.Config{Model: "h200", Instances: []string{"1g.18gb"}, Driver: "590"},
			clients: []int{8}, parts: []float64{1}, unknown: hopper,
		},
		"the whole of it": {
			cfg:     gpusim.Config{Model: "a100", Instances: []string{"7g.40gb"}},
			clients: []int{48}, parts: []float64{1}, unknown: ampere,
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.cfg.Exclusive = true
			lib, st := machine(t, c.cfg)
			whole, sims := lib.Devices()[0], st.Device(0).Instances()
			must.Equal(t, [2]int{whole.MIG.Max, len(whole.MIG.Instances)}, [2]int{7, len(sims)})
			must.Equal(t, whole.Persistent != nil && *whole.Persistent, true, "persistence mode")
			must.Equal(t, whole.Mode, "") // of a GPU in MIG mode NVML gives none
			var pids []int
			for k := range sims { // each on all of its SMs, for half of the time
				pids = append(pids, run(t, st.Device(0), gpusim.Claimant{Instance: k + 1},
					rlcore.Use{GPU: .5, Core: .05, MemMiB: 1000, PCIeMBps: 900}))
			}
			s, fails := read(lib, 0)
			if s.MemMiB < 1000 || s.PowerW == 0 || !errors.Is(fails["utilization"], ErrNotSupported) {
				t.Errorf("the card itself: %+v, %v", s, fails)
			}
			for k, sim := range sims {
				d, in := whole.Instance(k), whole.MIG.Instances[k]
				must.Equal(t, gpusim.Instance{
					UUID: d.UUID, Profile: in.Profile, GPUInstance: in.GPUInstance, SMs: d.SMs, MemMiB: d.MemMiB,
				}, sim)
				must.Equal(t, d.Model+" of "+d.Parent, whole.Model+" MIG "+sim.Profile+" of "+whole.UUID)
				must.Equal(t, d.MPS.MaxClients, c.clients[k], sim.Profile)
				must.Equal(t, d.Mode, Exclusive)
				if w := must.Get(d.Power())(t); !near(w, s.PowerW*c.parts[k]) {
					t.Errorf("%s: %v of %v W", sim.Profile, w, s.PowerW)
				}
				if mbps := must.Get(d.PCIe())(t); !near(mbps, s.PCIeMBps*c.parts[k]) || mbps == 0 {
					t.Errorf("%s: %v of %v MB/s", sim.Profile, mbps, s.PCIeMBps)
				}
				must.Equal(t, must.Get(d.Memory())(t), 1000)
				must.Equal(t, must.Get(d.Processes())(t), []Process{{PID: pids[k], MemMiB: 1000, WithoutMPS: true}})
				for _, source := range c.unknown {
					must.Equal(t, d.Answers[source], false, source)
				}
				if _, _, err := d.Utilisation(); !errors.Is(err, ErrNotSupported) {
					t.Errorf("utilisation: %v", err)
				}
				if _, err := d.Activity(); slices.Contains(c.unknown, GPM) {
					must.Equal(t, errors.Is(err, ErrNotSupported), true, "%v", err)
					continue
				}
				time.Sleep(20 * time.Millisecond)
				act, err := d.Activity()
				if err != nil || !near(act.SM, .05*132/float64(sim.SMs)) || !near(act.Graphics, .5) {
					t.Errorf("%s: activity %+v, %v", sim.Profile, act, err)
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
