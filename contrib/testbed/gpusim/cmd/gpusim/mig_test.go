package main

import (
	"os/exec"
	"strings"
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
	if status != 0 || rep.Device != d.UUID() {
		t.Errorf("%d %+v", status, rep)
	}
	// alexnet holds 1222 MiB, the instance has 4864.
	if rep, status := r.start("alexnet --mem-scale 5", with("CUDA_VISIBLE_DEVICES="+d.Instances()[0].UUID)).end(); status != app.ExitOOM {
		t.Errorf("%d %+v", status, rep)
	}
}

// The fault command speaks to the machine while it runs.
func TestFaultCommand(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	r := newRig(t, gpusim.Config{})
	command := func(args ...string) (string, error) {
		c := exec.Command(bin+"/gpusim", args...)
		c.Env = r.env
		out, err := c.CombinedOutput()
		return string(out), err
	}
	for _, f := range gpusim.FaultFigures() {
		for _, mode := range []string{"zero", "huge", "backwards", "return=15", "none"} {
			if out, err := command("fault", f, mode); err != nil {
				t.Fatalf("%s %s: %v %s", f, mode, err, out)
			}
		}
	}
	for _, lost := range []bool{true, false} {
		flag := "--lost=true"
		if !lost {
			flag = "--lost=false"
		}
		if out, err := command("fault", flag); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		if s, err := r.state.Device(0).Snapshot(); err != nil || s.Lost != lost {
			t.Errorf("%s: %v %v", flag, s.Lost, err)
		}
	}
	for _, bad := range [][]string{{"power", "odd"}, {"nothing", "zero"}, {"power"}, {"--gpu", "1", "power", "zero"}} {
		if out, err := command(append([]string{"fault"}, bad...)...); err == nil || !strings.Contains(out, "gpusim:") {
			t.Errorf("%v was taken: %s", bad, out)
		}
	}
}
