package nvml

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

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
				must.OK(t, lib.Acquire())
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
		"cut up":         {Model: "a100", GPUs: 2, MIG: true},
	} {
		t.Run(name, func(t *testing.T) {
			lib, _ := machine(t, before)
			must.OK(t, lib.Release())
			state := os.Getenv(gpusim.StateEnv)
			must.OK(t, os.Remove(state))
			if after != nil {
				must.OK(t, gpusim.Create(state, *after))
			}
			if err := lib.Acquire(); !errors.Is(err, ErrChanged) {
				t.Errorf("%v", err)
			}
			if after == nil {
				lib.released = true // nothing is open that could be closed
			}
		})
	}
}
