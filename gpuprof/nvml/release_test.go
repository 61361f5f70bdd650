package nvml

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// holds reports whether this process has the simulated GPUs open, as a library of NVIDIA's has /dev/nvidia*.
func holds(t *testing.T) bool {
	t.Helper()
	links := must.Get(filepath.Glob("/proc/self/fd/*"))(t)
	// The test itself has it open, through gpusim.Open.
	n := 0
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == os.Getenv(gpusim.StateEnv) {
			n++
		}
	}
	return n > 1
}

// Released, nothing keeps others from the GPUs; acquired again, all of it is read as before, by the same Devices.
func TestReleased(t *testing.T) {
	for name, cfg := range map[string]gpusim.Config{
		"whole": {Model: "h200", GPUs: 2}, "cut up": {Model: "h200", Instances: []string{"1g.18gb", "3g.71gb"}},
	} {
		t.Run(name, func(t *testing.T) {
			lib, st := machine(t, cfg)
			d, on := lib.Devices()[0], gpusim.Claimant{}
			if len(cfg.Instances) > 0 {
				on.Instance = d.MIG.Instances[1].UUID
				d = d.Instance(1)
			}
			run(t, st.Device(0), on, rlcore.Use{GPU: 0.5, Core: 0.5, MemMiB: 4000})
			look := func() {
				t.Helper()
				if mem, err := d.Read(Memory); err != nil || !(mem > 1000) {
					t.Errorf("%v MiB, %v", mem, err)
				}
				if _, err := d.Activity(); !errors.Is(err, ErrNotYet) {
					t.Errorf("the first activity: %v", err)
				}
				time.Sleep(2 * LeastActivity)
				if a, err := d.Activity(); err != nil || !(a.SM > 0.3) {
					t.Errorf("activity %+v, %v", a, err)
				}
			}
			look()
			if !holds(t) {
				t.Error("the GPUs aren't open")
			}
			for range 2 {
				must.OK(t, lib.Release())
				if holds(t) {
					t.Error("the GPUs are still open")
				}
				must.Equal(t, must.Get(lib.Acquire())(t), false)
				look()
			}
			must.OK(t, lib.Release())
		})
	}
}

// What was done to the GPUs in the meantime is seen.
func TestChangedWhileReleased(t *testing.T) {
	before := gpusim.Config{Model: "a100", GPUs: 2}
	for name, after := range map[string]*gpusim.Config{
		"no driver":      nil,
		"another driver": {Model: "a100", GPUs: 2, Driver: "590"},
		"one GPU":        {Model: "a100"},
		"another card":   {Model: "v100", GPUs: 2},
	} {
		t.Run(name, func(t *testing.T) {
			lib, _ := machine(t, before)
			must.OK(t, lib.Release())
			state := os.Getenv(gpusim.StateEnv)
			must.OK(t, os.Remove(state))
			if after != nil {
				must.OK(t, gpusim.Create(state, *after))
			}
			if _, err := lib.Acquire(); !errors.Is(err, ErrChanged) {
				t.Errorf("%v", err)
			}
			if after == nil {
				lib.released = true // nothing is open that could be closed
			}
		})
	}
}

// A GPU that was cut into other instances, or made whole, is known anew, whether it was closed meanwhile or not; the
// others stay the Devices that they were.
func TestCutAnew(t *testing.T) {
	sevenths, halves := []string{"1g.5gb", "1g.5gb", "1g.5gb"}, []string{"3g.20gb", "3g.20gb"}
	for name, c := range map[string]struct {
		before, after gpusim.Config
		want          []string // names of the second GPU's instances
	}{
		"cut":              {gpusim.Config{}, gpusim.Config{Instances: halves}, halves},
		"cut otherwise":    {gpusim.Config{Instances: sevenths}, gpusim.Config{Instances: halves}, halves},
		"one more":         {gpusim.Config{Instances: sevenths[:2]}, gpusim.Config{Instances: sevenths}, sevenths},
		"whole":            {gpusim.Config{Instances: halves}, gpusim.Config{}, nil},
		"MIG mode on":      {gpusim.Config{}, gpusim.Config{MIG: true}, nil},
		"as it was":        {gpusim.Config{Instances: halves}, gpusim.Config{Instances: halves}, halves},
		"never cut at all": {gpusim.Config{}, gpusim.Config{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			for _, cfg := range []*gpusim.Config{&c.before, &c.after} {
				cfg.Model, cfg.GPUs, cfg.Uncut = "a100", 2, []int{0}
			}
			lib, _ := machine(t, c.before)
			first := lib.Devices()[0]
			must.OK(t, lib.Release())
			must.OK(t, gpusim.Create(os.Getenv(gpusim.StateEnv), c.after))
			recut := must.Get(lib.Acquire())(t)
			d := lib.Devices()[1]
			must.Equal(t, recut, !cmp.Equal(c.before, c.after))
			must.Equal(t, d.MIG.On, c.after.MIG || len(c.want) > 0)
			must.Equal(t, len(d.MIG.Instances), len(c.want))
			for k, profile := range c.want {
				in := d.Instance(k)
				must.Equal(t, in.Model, "NVIDIA A100-SXM4-40GB MIG "+profile)
				must.Get(in.Read(Memory))(t)
			}
			_, err := first.Read(Power)
			must.OK(t, err)
			// Nothing has changed since.
			must.Equal(t, must.Get(lib.Acquire())(t), false)
		})
	}
}
