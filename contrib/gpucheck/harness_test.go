package main

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
)

// What the CUDA programs have in common, with a sleep instead of a kernel.
func TestHarness(t *testing.T) {
	t.Parallel()
	gxx, err := exec.LookPath("g++")
	if err != nil {
		t.Skip("no C++ compiler")
	}
	program := filepath.Join(t.TempDir(), "sleep")
	out, err := exec.Command(gxx, "-std=c++14", "-Wall", "-Wextra", "-Wno-unused-function", "-Werror", "-Itestdata/stub", "-Ikernels",
		"-o", program, "testdata/stub/sleep.cpp").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r := newRig(t, gpusim.Config{Model: "v100"})
	b := &bench{
		service: newService(filepath.Join(r.dir, "none"), "", 0, ""), target: time.Second,
		program: func(*Kernel) []string { return []string{program} },
	}
	k := &Kernel{Name: "sleep", Duty: 0.5, Period: 10 * time.Millisecond, SMs: 1, MemMiB: 12}
	s := solo{Kernel: *k}
	err = b.calibrate(t.Context(), &s)
	// Sleeps take longer than requested, on a busy machine much longer: less
	// work is found to fill a period, but none is shorter than its pause of 5 ms.
	if err != nil || s.work < 1 || s.work > 50 || s.iterations < 3 || s.iterations > 200 {
		t.Fatalf("%+v %v", s, err)
	}
	start := func(work, iterations int) *process {
		p, err := b.launch(t.Context(), k, "--work", strconv.Itoa(work), "--iterations", strconv.Itoa(iterations))
		if err != nil {
			t.Fatal(err)
		}
		if l, err := p.next(); err != nil || !l.Ready {
			t.Fatalf("%+v %v", l, err)
		}
		return p
	}

	p := start(40, 60)
	got, err := race([]*process{p})
	if err := p.stop(); err != nil {
		t.Error(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	tr := got[0]
	last := tr[len(tr)-1]
	if len(tr) < 3 || tr[0].N != 0 || last.N != 60 || !last.Done || last.MovedMB != 60*40*0.5 || last.HeldMiB != 12 {
		t.Errorf("%d lines, the last %+v", len(tr), last)
	}
	// 60 times 4 ms of work and 5 ms of pause at least.
	if d := last.At - tr[0].At; d < 0.54 || last.BusyS < 0.24 || last.BusyS > d-0.3 {
		t.Errorf("%v s, busy for %v", d, last.BusyS)
	}

	// One that is no longer wanted says how far it came; one that is never wanted
	// says nothing.
	long, short := start(1, 1e9), start(1, 20)
	both, err := race([]*process{long, short})
	for _, p := range []*process{long, short, start(1, 5)} {
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if n := both[0][len(both[0])-1].N; n < 1 || n > 1e6 {
		t.Errorf("stopped after %d iterations", n)
	}
	if r, _, _, err := rates(both...); err != nil || !(r[0] > 0) {
		t.Errorf("%v %v", r, err)
	}

	for _, args := range [][]string{{"--duty", "0"}, {"--duty", "1.5"}, {"--work"}, {"--work", "nan"}, {"--iterations", "-1"}, {"--nosuch", "1"}} {
		if out, err := exec.Command(program, args...).Output(); err == nil || len(out) != 0 {
			t.Errorf("%v: %s", args, out)
		}
	}
}
