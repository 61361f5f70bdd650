// Package app runs an application on the simulated GPU: a process that finds its
// GPU as a CUDA program does, follows a profile there and ends when its work is
// done.
package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/mps"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Exit statuses of an application, as `gpusim run --help` documents them.
const (
	ExitDevice = 1 // no usable GPU
	ExitOOM    = 2 // out of GPU memory
	ExitMPS    = 3 // no connection to the MPS server
	ExitFault  = 4 // its context was destroyed
)

// Error is how a CUDA program says that it can't go on.
type Error struct {
	Exit int // exit status
	Text string
}

// Error returns CUDA's message.
func (e *Error) Error() string { return "CUDA error: " + e.Text }

// Config is one run.
type Config struct {
	State   string // path of the state file; "" = $GPUSIM_STATE
	Profile *rlcore.Profile
	// FaultAtS makes a kernel fault after so many GPU seconds; 0 = never.
	FaultAtS float64
	// Preallocate is the part that it takes at its start of the memory that it sees, the card's or its limit, whatever it
	// needs; 0 = it takes what it needs.
	Preallocate float64
}

// Report is what a run leaves behind: one line of JSON.
type Report struct {
	App       string  `json:"app"`
	Status    string  `json:"status"` // finished, oom, fault, running (ended before its work was done)
	Device    string  `json:"device"` // UUID
	Index     int     `json:"index"`  // NVML's
	PID       int     `json:"pid"`
	MPS       bool    `json:"mps"`
	Server    int     `json:"server,omitempty"` // pid of the MPS server
	WaitS     float64 `json:"wait_s"`           // waited for the MPS server, GPU seconds
	StartS    float64 `json:"start_s"`          // on the GPU's clock
	GPUS      float64 `json:"gpu_s"`            // run time on the GPU's clock
	SoloS     float64 `json:"solo_s"`           // what it takes alone
	DoneS     float64 `json:"done_s"`           // solo work done
	Slowdown  float64 `json:"slowdown"`         // run time ÷ solo time of the work done
	MemMaxMiB float64 `json:"mem_max_mib"`
	Scale     float64 `json:"scale"`
}

// longestNap is the longest, in real time, that a process computes without a look at its progress: what happens to it
// through others, such as a fault of their server, it learns then. Outcomes don't depend on it: the device advances
// from event to event.
const longestNap = 200 * time.Millisecond

// Run runs the application to its end. A context that ends stops it where it is; Run then returns
// the context's error. In any case the GPU holds nothing of it afterwards.
func Run(ctx context.Context, cfg Config) (rep Report, err error) {
	st, err := gpusim.Open(cfg.State)
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	rep = Report{
		App: cfg.Profile.App, PID: os.Getpid(), SoloS: cfg.Profile.DurationS, Scale: st.Scale(),
		Status: gpusim.Running.String(),
	}

	asked := st.Now()
	client, err := mps.Connect(ctx, os.Getenv)
	rep.WaitS = st.Now() - asked
	var served []string
	switch {
	case errors.Is(err, mps.ErrNoDaemon): // it computes without
	case errors.Is(err, mps.ErrRefused):
		return rep, &Error{Exit: ExitMPS, Text: err.Error()}
	case err != nil:
		return rep, err
	default:
		defer func() { _ = client.Close() }()
		rep.MPS, rep.Server, served = true, client.Server, client.Devices
	}
	v, set := os.LookupEnv(mps.VisibleEnv)
	all := st.Visible(v, set, served)
	if len(all) == 0 {
		return rep, cudaError(gpusim.ErrNoInstance)
	}
	dev, limits := all[0], gpusim.Limits{}
	rep.Device, rep.Index = dev.Name(), dev.Index()
	if rep.MPS && !dev.SameUser() {
		if limits, err = gpusim.ParseLimits(os.Getenv(mps.MemLimitEnv), os.Getenv(mps.ThreadsEnv), 0); err != nil {
			return rep, &Error{Exit: ExitMPS, Text: err.Error() + ": invalid argument (cudaErrorInvalidValue)"}
		}
	}
	if cfg.Preallocate > 0 {
		cfg.Profile = preallocated(cfg.Profile, cfg.Preallocate*cmp.Or(limits.MemMiB, dev.MemMiB()))
	}
	claimant := gpusim.Claimant{UID: os.Getuid(), Server: rep.Server, Instance: dev.Instance, Limits: limits}
	slot, err := dev.Claim(claimant, cfg.Profile)
	if err != nil {
		if errors.Is(err, gpusim.ErrOOM) {
			rep.Status = gpusim.OOM.String()
		}
		return rep, cudaError(err)
	}
	defer func() { err = errors.Join(err, slot.Release()) }()
	return rep, follow(ctx, &cfg, &rep, slot, client)
}

// follow waits for the end of the work.
func follow(ctx context.Context, cfg *Config, rep *Report, slot *gpusim.Slot, client *mps.Client) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		p, err := slot.Progress()
		if err != nil {
			rep.Status = gpusim.Faulted.String()
			return cudaError(err)
		}
		rep.fill(&p)
		switch p.Status {
		case gpusim.Finished:
			return nil
		case gpusim.OOM:
			return cudaError(gpusim.ErrOOM)
		case gpusim.Faulted:
			return &Error{Exit: ExitFault, Text: "unspecified launch failure (cudaErrorLaunchFailure)"}
		}
		if cfg.FaultAtS > 0 && rep.GPUS >= cfg.FaultAtS {
			rep.Status = gpusim.Faulted.String()
			err := slot.Fault()
			if client != nil {
				client.Fault()
			}
			return errors.Join(&Error{
				Exit: ExitFault,
				Text: "an illegal memory access was encountered (cudaErrorIllegalAddress)",
			}, err)
		}
		// If all others left now, it would end so soon.
		soonS := p.DurationS - p.DoneS
		if cfg.FaultAtS > 0 {
			soonS = min(soonS, cfg.FaultAtS-rep.GPUS)
		}
		timer.Reset(min(max(time.Duration(soonS/rep.Scale*float64(time.Second)), time.Millisecond), longestNap))
	}
}

func (r *Report) fill(p *gpusim.Progress) {
	r.Status, r.StartS, r.MemMaxMiB = p.Status.String(), p.StartT, p.MemMaxMiB
	// In seconds of the run without limits.
	r.DoneS = p.DoneS / p.DurationS * r.SoloS
	r.GPUS = p.NowT - p.StartT
	if p.EndT > 0 {
		r.GPUS = p.EndT - p.StartT
	}
	r.Slowdown = 0
	if r.DoneS > 0 {
		r.Slowdown = r.GPUS / r.DoneS
	}
}

// cudaError is what a CUDA program makes of the simulator's errors.
func cudaError(err error) error {
	switch {
	case errors.Is(err, gpusim.ErrOOM):
		return &Error{Exit: ExitOOM, Text: "out of memory (cudaErrorMemoryAllocation)"}
	case errors.Is(err, gpusim.ErrExclusive):
		return &Error{
			Exit: ExitDevice,
			Text: "all CUDA-capable devices are busy or unavailable (cudaErrorDevicesUnavailable)",
		}
	case errors.Is(err, gpusim.ErrLost):
		return &Error{Exit: ExitDevice, Text: "the GPU is lost (cudaErrorDevicesUnavailable)"}
	case errors.Is(err, gpusim.ErrNoInstance):
		return &Error{Exit: ExitDevice, Text: "no CUDA-capable device is detected (cudaErrorNoDevice)"}
	case errors.Is(err, gpusim.ErrGone):
		return &Error{Exit: ExitFault, Text: "context is destroyed (cudaErrorContextIsDestroyed)"}
	}
	return fmt.Errorf("simulated GPU: %w", err)
}

// preallocated returns the profile of a run that holds so much memory all the time, MiB, and fails where it needs more.
func preallocated(p *rlcore.Profile, mib float64) *rlcore.Profile {
	q := Scaled(p, 1, 1)
	for i := range q.Series {
		if q.Series[i].MemMiB <= mib {
			q.Series[i].MemMiB = mib
		} else {
			q.Series[i].MemMiB = gpusim.TooMuch
		}
	}
	return q
}

// Scaled returns the profile of a run that takes `duration` times as long and
// holds `memory` times as much.
func Scaled(p *rlcore.Profile, duration, memory float64) *rlcore.Profile {
	q := *p
	q.DurationS *= duration
	q.PeriodS *= duration
	q.Series = make([]rlcore.Use, len(p.Series))
	for i, u := range p.Series {
		u.MemMiB *= memory
		q.Series[i] = u
	}
	return &q
}
