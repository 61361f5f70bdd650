package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// misbehave makes stand-ins fail: "NAME=how,…".
const misbehave = "GPUCHECK_TEST_MISBEHAVE"

// simKernel stands in for a client that is a kernel: a step is the part of a period in which its profile computes, on
// the GPU's clock.
type simKernel struct {
	simClient
	how, name     string
	busy          float64 // s, of a step alone
	mem           float64
	period, steps float64
	last          time.Time // when the last step ended
}

// stand serves a stand-in for the client that these arguments ask for.
func stand(args []string, in io.Reader, out io.Writer) error {
	k := &simKernel{}
	f := flag.NewFlagSet("client", flag.ContinueOnError)
	shm, work := f.Bool("private-shm", false, ""), f.Float64("work", 0, "")
	f.StringVar(&k.name, "kernel", "", "")
	f.Float64Var(&k.mem, "mem-mib", 0, "")
	switch err := f.Parse(args); {
	case err != nil:
		return err
	case *shm:
		return withOwnShm()
	case k.name == "":
		return serveClient(new(simClient), in, out)
	case *work != 0 && *work != 7:
		return fmt.Errorf("work %v", *work)
	}
	for _, kv := range strings.Split(os.Getenv(misbehave), ",") {
		if name, how, _ := strings.Cut(kv, "="); name == k.name {
			k.how = how
		}
	}
	return serveClient(k, in, out)
}

func (k *simKernel) Open(a *answer) error {
	known, err := catalogue(nil, []string{k.name})
	if err != nil {
		return err
	}
	k.busy = known[0].busy().Seconds()
	if known[0].Duty == 1 {
		k.busy = 0.002 // counts are fine enough for short runs
	}
	k.period = k.busy / known[0].Duty
	on := rlcore.Use{GPU: 1, Core: known[0].SMs, MemMiB: k.mem}
	if k.name == "pcie" {
		on = rlcore.Use{PCIeMBps: 20000}
	}
	// The card sees the mean of its periods.
	on.GPU, on.Core = on.GPU*known[0].Duty, on.Core*known[0].Duty
	all := 1e4 * k.period
	k.profile = &rlcore.Profile{App: k.name, DurationS: all, PeriodS: all, StepS: k.period, Series: []rlcore.Use{on}}
	if err := k.simClient.Open(a); err != nil {
		return err
	}
	if k.how == "alone" {
		_ = k.mps.Close()
	}
	a.Work, a.HeldMiB, a.StepMB = 7, k.mem, on.PCIeMBps*k.busy
	return nil
}

func (k *simKernel) Step() (bool, time.Duration, error) {
	if k.how == "crash" {
		return true, 0, &cudaError{Call: "cuLaunchKernel", Code: 2, Name: "cudaErrorMemoryAllocation"}
	}
	if p, err := k.slot.Progress(); err == nil && time.Since(k.last).Seconds() > 0.005+k.period-k.busy {
		k.steps = max(k.steps, math.Ceil(p.DoneS/k.period)) // what passed while nobody asked for it is none
	}
	defer func() { k.last = time.Now() }()
	for from := time.Now(); ; {
		p, err := k.slot.Progress()
		left := k.steps*k.period + k.busy - p.DoneS
		if err != nil || p.Status != gpusim.Running || left <= 0 {
			k.steps++
			return true, time.Since(from), err
		}
		time.Sleep(time.Duration(left * max(1, p.Slowdown) * float64(time.Second)))
	}
}
