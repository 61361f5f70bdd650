package main

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
)

// A program that is given a MIG instance computes there; one that isn't, on a GPU
// in MIG mode, has no device.
func TestMIGInstance(t *testing.T) {
	r := newRig(t, gpusim.Config{Model: "a100", Instances: []string{"1g.5gb", "3g.20gb"}, Scale: 1000})
	d := r.state.Device(0)
	for _, v := range []string{"0", d.UUID(), "MIG-none", ""} {
		if _, status := r.start("alexnet", with("CUDA_VISIBLE_DEVICES="+v)).end(); status != app.ExitDevice {
			t.Errorf("%q: %d", v, status)
		}
	}
	large := d.Instances()[1].UUID
	rep, status := r.start("alexnet --duration-scale 0.1", with("CUDA_VISIBLE_DEVICES="+large)).end()
	if status != 0 || rep.Device != large {
		t.Errorf("%d %+v", status, rep)
	}
	// The instance has 4864 MiB.
	if rep, status := r.start("alexnet --mem-mib 6000",
		with("CUDA_VISIBLE_DEVICES="+d.Instances()[0].UUID)).end(); status != app.ExitOOM {
		t.Errorf("%d %+v", status, rep)
	}
}
