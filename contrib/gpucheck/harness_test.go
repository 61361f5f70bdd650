package main

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
	k := &Kernel{Name: "sleep", Duty: 0.5, Period: 10 * time.Millisecond, SMs: 1, MemMiB: 12}
	play := func(seconds float64, stopAfter time.Duration) (line, error) {
		b := &bench{
			service: newService(t.TempDir(), "", 0, ""), duration: time.Duration(seconds * float64(time.Second)),
			program: func(*Kernel) []string { return []string{program} },
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ready, begin := make(chan struct{}, 2), make(chan struct{})
		go func() {
			<-ready
			if stopAfter == 0 {
				stop()
				return
			}
			close(begin)
			time.AfterFunc(stopAfter, stop)
		}()
		return b.play(ctx, k, ready, begin)
	}
	if _, err := play(1, 0); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "exit status") {
		t.Errorf("unwanted: %v", err)
	}
	// Sleeps take longer than requested, on a busy machine much longer: less
	// work is found to fill a period, but none is shorter than its pause of 5 ms.
	if k.work < 1 || k.work > 50 {
		t.Errorf("work %v", k.work)
	}
	k.work = 40
	end, err := play(0.6, time.Hour)
	if err != nil || end.MovedMB != end.N*40*0.5 || end.HeldMiB != 12 {
		t.Errorf("%+v, %v", end, err)
	}
	// 4 ms of work and 5 ms of pause each at least; the first tenth isn't counted.
	if d := end.Seconds; d < 0.5 || d < 0.009*end.N || end.BusyS < 0.004*end.N || end.BusyS > d-0.005*end.N {
		t.Errorf("%v s, busy for %v", d, end.BusyS)
	}
	// A program that is no longer wanted prints its progress and ends.
	if end, err := play(600, 100*time.Millisecond); err != nil || end.N < 1 {
		t.Errorf("%v: %+v", err, end)
	}

	for _, args := range [][]string{{"--duty", "0"}, {"--duty", "1.5"}, {"--work"}, {"--work", "nan"}, {"--seconds", "-1"}, {"--nosuch", "1"}} {
		if out, err := exec.Command(program, args...).Output(); err == nil || len(out) != 0 {
			t.Errorf("%v: %s", args, out)
		}
	}
}
