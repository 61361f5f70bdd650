package nvml

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Released and acquired again, all of the GPUs is read as before, by the same Devices.
func TestGPUsAreReadAfterARelease(t *testing.T) {
	for name, cfg := range map[string]gpusim.Config{
		"whole": {Model: "h200", GPUs: 2}, "cut up": {Model: "h200", Instances: []string{"1g.18gb", "3g.71gb"}},
	} {
		t.Run(name, func(t *testing.T) {
			lib, st := machine(t, cfg)
			d, on := lib.Devices()[0], gpusim.Claimant{}
			if len(cfg.Instances) > 0 {
				on.Instance = 2
				d = d.Instance(1)
			}
			run(t, st.Device(0), on, rlcore.Use{GPU: 0.5, Core: 0.5, MemMiB: 4000})
			for range 3 {
				if mem, err := d.Memory(); err != nil || !(mem > 1000) {
					t.Errorf("%v MiB, %v", mem, err)
				}
				must.Is(t, must.Err(d.Activity()), ErrNotYet, "the first activity")
				time.Sleep(2 * LeastActivity)
				if a, err := d.Activity(); err != nil || !(a.SM > 0.3) {
					t.Errorf("activity %+v, %v", a, err)
				}
				must.OK(t, lib.Release())
				must.Equal(t, must.Get(lib.Acquire())(t), false)
			}
			must.OK(t, lib.Release())
		})
	}
}

// What was done to GPUs that were closed is seen. One that was cut into other instances, or made whole, is known anew,
// and the others stay the Devices that they were. Other GPUs, or another driver, are not what the library was opened
// with.
func TestChangedWhileReleased(t *testing.T) {
	cut := func(profiles ...string) *gpusim.Config {
		return &gpusim.Config{Model: "a100", GPUs: 2, Uncut: []int{0}, Instances: profiles}
	}
	whole, sevenths, halves := cut(), []string{"1g.5gb", "1g.5gb", "1g.5gb"}, []string{"3g.20gb", "3g.20gb"}
	inMIG, exclusive, exclusiveHalves := *whole, *whole, *cut(halves...)
	inMIG.MIG, exclusive.Exclusive, exclusiveHalves.Exclusive = true, true, true
	for name, c := range map[string]struct {
		before  *gpusim.Config
		after   *gpusim.Config // nil = there is no driver
		changed bool
		want    []string // profiles of the second GPU's instances
	}{
		"no driver":      {before: whole, changed: true},
		"another driver": {before: whole, after: &gpusim.Config{Model: "a100", GPUs: 2, Driver: "590"}, changed: true},
		"one GPU":        {before: whole, after: &gpusim.Config{Model: "a100"}, changed: true},
		"another card":   {before: whole, after: &gpusim.Config{Model: "v100", GPUs: 2}, changed: true},
		"cut":            {before: whole, after: cut(halves...), want: halves},
		"cut otherwise":  {before: cut(sevenths...), after: cut(halves...), want: halves},
		"one more":       {before: cut(sevenths[:2]...), after: cut(sevenths...), want: sevenths},
		"made whole":     {before: cut(halves...), after: whole},
		"MIG mode on":    {before: whole, after: &inMIG},
		"exclusive":      {before: whole, after: &exclusive},
		"cut, exclusive": {before: cut(halves...), after: &exclusiveHalves, want: halves},
		"as it was":      {before: cut(halves...), after: cut(halves...), want: halves},
		"never cut":      {before: whole, after: whole},
	} {
		t.Run(name, func(t *testing.T) {
			lib, _ := machine(t, *c.before)
			first := lib.Devices()[0]
			must.OK(t, lib.Release(), os.Remove(os.Getenv(gpusim.StateEnv)))
			if c.after != nil {
				must.OK(t, gpusim.Create(os.Getenv(gpusim.StateEnv), *c.after))
			}
			anew, err := lib.Acquire()
			must.Equal(t, errors.Is(err, ErrChanged), c.changed, "%v", err)
			lib.released = c.after == nil // nothing is open then that could be closed
			if c.changed {
				return
			}
			must.Equal(t, anew, !cmp.Equal(c.before, c.after))
			d := lib.Devices()[1]
			must.Equal(t, d.MIG.On, c.after.MIG || len(c.want) > 0)
			must.Equal(t, lib.Devices()[0].Mode == Exclusive, c.after.Exclusive)
			must.Equal(t, len(d.MIG.Instances), len(c.want))
			for k, profile := range c.want {
				in := d.Instance(k)
				must.Equal(t, in.Model, "NVIDIA A100-SXM4-40GB MIG "+profile)
				must.Get(in.Memory())(t)
			}
			must.Get(first.Power())(t)
			must.Equal(t, must.Get(lib.Acquire())(t), false, "nothing has changed since")
		})
	}
}
