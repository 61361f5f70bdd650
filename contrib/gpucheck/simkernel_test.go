package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/mps"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// misbehave makes stand-ins fail: "NAME=how,…".
const misbehave = "GPUCHECK_TEST_MISBEHAVE"

// simKernel stands in for a kernel's program, on the simulated GPU: the same
// arguments, the same lines, times on the GPU's clock. Its iterations are as long as
// a hundredth of the kernel's, so that counts are fine enough for short runs.
func simKernel(args []string, stdin io.Reader, out io.Writer) error {
	k := map[string]float64{}
	for i := 1; i+1 < len(args); i += 2 {
		v, err := strconv.ParseFloat(args[i+1], 64)
		if err != nil {
			return err
		}
		k[args[i]] = v
	}
	how := ""
	for _, kv := range strings.Split(os.Getenv(misbehave), ",") {
		if name, h, _ := strings.Cut(kv, "="); name == args[0] {
			how = h
		}
	}
	period := k["--period-ms"] / 1000
	step := period / 100
	if w := k["--work"]; w != 0 && w != 7 {
		return fmt.Errorf("work %v", w)
	}
	client, err := mps.Connect(context.Background(), os.Getenv)
	if errors.Is(err, mps.ErrNoDaemon) {
		client, err = new(mps.Client), nil // it takes turns
	}
	if err != nil {
		return err
	}
	if how == "alone" {
		_ = client.Close()
	}
	st, err := gpusim.Open("")
	if err != nil {
		return err
	}
	p := simProfile(args[0], k, k["--seconds"], period, step)
	fmt.Fprintln(out, `{"ready":true,"work":7}`)
	in := bufio.NewReader(stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return nil
	}
	hungUp := make(chan struct{})
	go func() { _, _ = in.ReadByte(); close(hungUp) }()
	if how == "crash" {
		return fmt.Errorf("out of memory (cudaErrorMemoryAllocation)")
	}
	dev := st.Device(0)
	slot, err := dev.Claim(gpusim.Claimant{UID: os.Getuid(), Server: client.Server}, p)
	if err != nil {
		return err
	}
	for {
		pr, err := slot.Progress()
		if err != nil {
			return err
		}
		at, over := pr.NowT, pr.Status != gpusim.Running
		if over {
			at = pr.EndT
		}
		over = over || at >= pr.StartT+k["--seconds"]
		select {
		case <-hungUp:
			over = true
		case <-time.After(3 * time.Millisecond):
		}
		if over {
			fmt.Fprintf(out, "{\"n\":%d,\"seconds\":%.9f,\"busy_s\":%.9f,\"moved_mb\":%g,\"held_mib\":%g}\n", int64(pr.DoneS/step+1e-6),
				at-pr.StartT, pr.DoneS*k["--duty"], pr.DoneS*p.Mean().PCIeMBps, k["--mem-mib"])
			return slot.Release()
		}
	}
}

// simProfile is what a stand-in asks for: a tenth of its period is a point.
func simProfile(name string, k map[string]float64, seconds, period, step float64) *rlcore.Profile {
	on := rlcore.Use{GPU: 1, Core: k["--sms"], MemMiB: k["--mem-mib"]}
	if name == "pcie" {
		on = rlcore.Use{PCIeMBps: 20000}
	}
	p := &rlcore.Profile{App: name, DurationS: seconds, PeriodS: seconds, StepS: step, Series: []rlcore.Use{on}}
	if duty := k["--duty"]; duty < 1 {
		p.PeriodS, p.Series = period/10, nil
		for i := range int(seconds/p.PeriodS + 1) {
			u := on
			if float64(i%10) >= 10*duty-1e-6 {
				u.GPU, u.Core = 0, 0
			}
			p.Series = append(p.Series, u)
		}
	}
	return p
}
