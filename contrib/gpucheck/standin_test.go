package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/mps"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// misbehave makes stand-ins fail: "NAME=how,…".
const misbehave = "GPUCHECK_TEST_MISBEHAVE"

// standIn stands in for a client on the simulated GPU: the checker, or a kernel, whose step is as much work as a period
// of it does alone. Without a daemon it computes for itself, as CUDA is thought to.
type standIn struct {
	Kernel
	mps    *mps.Client
	card   *gpusim.State
	slot   *gpusim.Slot
	limits gpusim.Limits
	epoch  time.Time // when the card's clock began
	// The last step ended at this time on the card's clock, with so much solo work done, both in s.
	endedS, doneS float64
	runs          bool // a step was made since the clock was read
}

// fails reports whether the kernel is to misbehave so.
func (s *standIn) fails(how string) bool {
	return slices.Contains(strings.Split(os.Getenv(misbehave), ","), s.Name+"="+how)
}

func (s *standIn) Open(a *answer) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	st, err := gpusim.Open("")
	if err != nil {
		return err
	}
	s.card, s.epoch = st, time.Now().Add(-seconds(st.Now()))
	var served []string
	server := 0
	switch s.mps, err = mps.Connect(ctx, os.Getenv); {
	case errors.Is(err, mps.ErrNoDaemon):
	case err != nil:
		return &cudaError{Call: "cuInit", Code: 805, Name: "CUDA_ERROR_MPS_CONNECTION_FAILED"}
	default:
		served, server = s.mps.Devices, s.mps.Server
	}
	if len(st.Visible(served)) == 0 {
		return &cudaError{Call: "cuInit", Code: 100, Name: "CUDA_ERROR_NO_DEVICE"}
	}
	dev := st.Device(0)
	if server != 0 && !dev.SameUser() {
		if s.limits, err = gpusim.ParseLimits(os.Getenv(mps.MemLimitEnv), os.Getenv(mps.ThreadsEnv)); err != nil {
			return err
		}
	}
	a.UUID, a.TotalMiB, a.FreeMiB = dev.UUID(), dev.MemMiB(), dev.MemMiB()
	use, period := rlcore.Use{GPU: s.Duty, Core: s.Duty * s.SMs, MemMiB: s.MemMiB}, s.Period.Seconds()
	switch s.Source {
	case "check":
		use = rlcore.Use{GPU: 0.4, Core: 0.2, MemMiB: 400}
	case "pcie":
		use = rlcore.Use{PCIeMBps: 20000}
	}
	p := &rlcore.Profile{App: s.Name, DurationS: 1e6, PeriodS: 1e6, StepS: period, Series: []rlcore.Use{use}}
	if s.Work != 0 && s.Work != 7 {
		return fmt.Errorf("work %v", s.Work)
	}
	a.Work, a.HeldMiB, a.StepMB = 7, s.MemMiB, use.PCIeMBps*period
	s.slot, err = dev.Claim(gpusim.Claimant{UID: os.Getuid(), Server: server, Limits: s.limits}, p)
	if s.fails("alone") {
		_ = s.mps.Close()
	}
	return err
}

// seconds are so many of them.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// look returns the kernel's progress, and at which time on the card's clock. A look that this process was interrupted in
// is repeated.
func (s *standIn) look() (p gpusim.Process, at float64, err error) {
	for {
		before := s.card.Now()
		p, err = s.slot.Progress()
		if at = s.card.Now(); err != nil || at-before < 1e-3 {
			return p, at, err
		}
	}
}

// now is the end of the last step after a run, and before one a moment from which the steps are counted: neither how
// late this process is woken nor how late it is stopped changes what is measured.
func (s *standIn) now() time.Time {
	if s.slot == nil {
		return time.Now()
	}
	if !s.runs {
		if p, at, err := s.look(); err == nil {
			s.endedS, s.doneS = at, p.DoneS
		}
	}
	s.runs = false
	return s.epoch.Add(seconds(s.endedS))
}

// Step takes what the GPU has done meanwhile for steps.
func (s *standIn) Step() (time.Duration, error) {
	if s.fails("crash") {
		return 0, &cudaError{Call: "cuLaunchKernel", Code: 2, Name: "cudaErrorMemoryAllocation"}
	}
	for {
		p, at, err := s.look()
		switch {
		case err != nil:
			return 0, err
		case p.Status == gpusim.Faulted:
			return 0, &cudaError{Call: "cuCtxSynchronize", Code: 700, Name: "CUDA_ERROR_ILLEGAL_ADDRESS"}
		case s.Source == "check":
			time.Sleep(2 * time.Millisecond)
			return 2 * time.Millisecond, nil
		}
		period := s.Period.Seconds()
		if left := s.doneS + period - p.DoneS; left > 0 {
			time.Sleep(seconds(left * p.Slowdown))
			continue
		}
		s.endedS += period * (at - s.endedS) / (p.DoneS - s.doneS)
		s.doneS += period
		s.runs = true
		return s.busy(), nil
	}
}

func (s *standIn) Fault() error {
	err := s.slot.Fault()
	if s.mps != nil {
		s.mps.Fault()
	}
	return errors.Join(&cudaError{Call: "cuCtxSynchronize", Code: 700, Name: "CUDA_ERROR_ILLEGAL_ADDRESS"}, err)
}

func (s *standIn) Alloc(mib float64) (float64, error) {
	if most := s.limits.MemMiB; most > 0 && mib > most {
		return most, &cudaError{Call: "cuMemAlloc", Code: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY"}
	}
	return mib, nil
}
